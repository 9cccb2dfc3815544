"""What makes several replicas compute what one device would."""
