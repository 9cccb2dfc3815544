"""`Trainer.verify`: trains a few steps on one device and on R replicas, and compares them."""
