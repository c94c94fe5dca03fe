"""Modules through which other libraries train by the algorithms of grsgd; each imports its library when it is used."""
