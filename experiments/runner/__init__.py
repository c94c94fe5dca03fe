"""The parts that all experiments share: runs by name, their places, and how they are made, estimated and compared."""
