"""The code that makes several replicas compute what one device would."""
