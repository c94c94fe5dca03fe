"""Coded multicast of gradients: a library of its own, without training and without messages in it."""
