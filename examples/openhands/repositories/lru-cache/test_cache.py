"""Tests of the cache."""

import unittest

from cache import Cache


class CacheTest(unittest.TestCase):
    """A cache with room for two."""

    def setUp(self):
        """Two entries."""
        self.cache = Cache(2)
        self.cache.put("a", 1)
        self.cache.put("b", 2)

    def test_what_was_put_is_there(self):
        """Both of them."""
        self.assertEqual((self.cache.get("a"), self.cache.get("b")), (1, 2))

    def test_the_oldest_goes(self):
        """There is room for two."""
        self.cache.put("c", 3)
        self.assertEqual(len(self.cache), 2)
        self.assertIsNone(self.cache.get("a"))

    def test_what_was_read_stays(self):
        """Reading is using."""
        self.cache.get("a")
        self.cache.put("c", 3)
        self.assertEqual(self.cache.get("a"), 1)
        self.assertIsNone(self.cache.get("b"))

    def test_what_was_written_again_stays(self):
        """So is writing."""
        self.cache.put("a", 10)
        self.cache.put("c", 3)
        self.assertEqual(self.cache.get("a"), 10)

    def test_default(self):
        """For what is not there."""
        self.assertEqual(self.cache.get("z", "nothing"), "nothing")

    def test_counts(self):
        """Two of three were there."""
        for key in "abz":
            self.cache.get(key)
        self.assertAlmostEqual(self.cache.counts.hit_rate(), 2 / 3)

    def test_no_room(self):
        """A cache has room for one at least."""
        with self.assertRaises(ValueError):
            Cache(0)


if __name__ == "__main__":
    unittest.main()
