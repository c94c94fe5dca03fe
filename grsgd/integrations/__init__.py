"""Modules through which other libraries train with the algorithms of grsgd. Each module imports its library itself."""
