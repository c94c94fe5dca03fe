"""Copies of arrays in memory that is used again."""

import numpy as np

from grsgd.models.values import Copies


def test_copies_use_the_memory_of_the_copies_before_them():
    copies, values = Copies(), [np.arange(6.0), np.arange(6.0) + 1, np.arange(3), np.array(7)]
    first = [copies.of(value) for value in values]
    copies.begin()
    second = [copies.of(value + 1) for value in reversed(values)]
    assert {id(copy) for copy in first} == {id(copy) for copy in second}
    for copy, value in zip(second, reversed(values), strict=True):
        assert (copy == value + 1).all() and copy.dtype == value.dtype
    copies.begin()
    assert copies.of(np.arange(6.0, dtype=np.float32)).dtype == np.float32, "of another dtype: in new memory"
    assert len(copies._made) == 1


def test_two_copies_have_memory_of_their_own():
    copies = Copies()
    for _ in range(2):
        copies.begin()
        one, other = copies.of(np.zeros(3)), copies.of(np.ones(3))
        assert not one.any() and other.all()
