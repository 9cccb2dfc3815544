"""`kfit.plot_history`: the losses and metrics of a training as a picture."""
