"""Private names of Keras and TensorFlow, and functions of theirs that are replaced for a while."""
