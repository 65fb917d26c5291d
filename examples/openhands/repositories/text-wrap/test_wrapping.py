"""Tests of wrapping."""

import unittest

from paragraphs import layout
from wrapping import longest, wrap


class WrapTest(unittest.TestCase):
    """Tests of wrap()."""

    def test_nothing(self):
        """An empty text has no lines."""
        self.assertEqual(wrap("", 10), [])

    def test_one_line(self):
        """A short text fits on one line."""
        self.assertEqual(wrap("a b c", 10), ["a b c"])

    def test_several_lines(self):
        """The lines contain all words."""
        self.assertEqual(wrap("the quick brown fox jumps", 10), ["the quick", "brown fox", "jumps"])

    def test_no_line_is_too_long(self):
        """The space counts as a character."""
        self.assertLessEqual(longest(wrap("abcde fghij klmno", 10)), 10)

    def test_a_long_word(self):
        """A long word has its own line."""
        self.assertEqual(wrap("a extraordinary b", 5), ["a", "extraordinary", "b"])


class LongestTest(unittest.TestCase):
    """Tests of longest()."""

    def test_no_lines(self):
        """The length is 0 without lines."""
        self.assertEqual(longest([]), 0)

    def test_lines(self):
        """The longest line counts."""
        self.assertEqual(longest(["a", "abc", "ab"]), 3)


class LayoutTest(unittest.TestCase):
    """Tests of layout()."""

    def test_two(self):
        """An empty line separates two paragraphs."""
        self.assertEqual(layout("one two\n\nthree", 20), "one two\n\nthree")

    def test_indent(self):
        """The indent counts as part of the line."""
        self.assertEqual(layout("one two three", 9, indent="  "), "  one two\n  three")


if __name__ == "__main__":
    unittest.main()
