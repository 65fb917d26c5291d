"""Tests of the cache."""

import unittest

from cache import Cache


class CacheTest(unittest.TestCase):
    """Tests of a cache with room for two."""

    def setUp(self):
        """Create a cache with two entries."""
        self.cache = Cache(2)
        self.cache.put("a", 1)
        self.cache.put("b", 2)

    def test_what_was_put_is_there(self):
        """Both entries are found."""
        self.assertEqual((self.cache.get("a"), self.cache.get("b")), (1, 2))

    def test_the_oldest_goes(self):
        """A third entry evicts the oldest."""
        self.cache.put("c", 3)
        self.assertEqual(len(self.cache), 2)
        self.assertIsNone(self.cache.get("a"))

    def test_what_was_read_stays(self):
        """Reading counts as use."""
        self.cache.get("a")
        self.cache.put("c", 3)
        self.assertEqual(self.cache.get("a"), 1)
        self.assertIsNone(self.cache.get("b"))

    def test_what_was_written_again_stays(self):
        """Writing counts as use."""
        self.cache.put("a", 10)
        self.cache.put("c", 3)
        self.assertEqual(self.cache.get("a"), 10)

    def test_default(self):
        """A missing key returns the default."""
        self.assertEqual(self.cache.get("z", "nothing"), "nothing")

    def test_counts(self):
        """Two of three lookups are hits."""
        for key in "abz":
            self.cache.get(key)
        self.assertAlmostEqual(self.cache.counts.hit_rate(), 2 / 3)

    def test_no_room(self):
        """A cache has room for at least one entry."""
        with self.assertRaises(ValueError):
            Cache(0)


if __name__ == "__main__":
    unittest.main()
