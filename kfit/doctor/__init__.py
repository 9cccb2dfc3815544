"""`kfit doctor`: what would make training hang or go wrong, said before it does.

Each module looks at one thing and returns findings; `examination` asks all of them in order.
Tasks that run it at the same time tell each other of themselves (`exchange`), for half of what goes
wrong in a cluster is a difference between two tasks.
"""
