"""What a step costs on N workers: measured for a few, predicted, and carried on to many.

formulas.py    exchange, snapshots and failures, each with the paper that it comes from; pure
parts.py       the parts of a step on one host, measured by the workers that `kfit.launch` starts
fitting.py     their parameters, by least squares, and the steps that follow from them
tables.py      what is printed, and put into docs/scaling.md
"""
