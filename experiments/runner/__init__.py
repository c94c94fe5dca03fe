"""What all experiments share: runs by name, where they lie, how they are made, tuned, estimated and compared."""
