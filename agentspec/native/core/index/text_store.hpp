// The texts of finished sequences, packed, equal ones once, from the oldest to the youngest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/pod_array.hpp"

namespace agentspec {

/// Tokens take as many bits as the largest of a text needs: 17 for a vocabulary of 131,072. The packed tokens
/// follow the header in memory.
struct Text {
  static constexpr std::uint32_t kNoOwner = 0xFFFFFFFFu;
  static constexpr std::uint32_t kMaxUses = 0xFFFF;  // what is equal from then on is a text of its own

  Text* older;
  Text* newer;
  Text* next;  // with the same bucket
  std::uint32_t hash;
  std::uint32_t size;         // tokens that are left
  std::uint32_t stored_size;  // tokens there were
  std::uint32_t uses;
  std::uint32_t owner;
  std::uint32_t chunk;    // where it lies
  std::uint16_t width;    // bits per token
  bool is_shared;         // found when an equal text is put
  std::uint32_t read_in;  // the last reading that it was part of

  std::size_t bytes() const {
    return sizeof(Text) + (std::size_t{stored_size} * width + 63) / 64 * sizeof(std::uint64_t);
  }
  /// Copies tokens [begin, begin + out.size()). O(out).
  void read(std::size_t begin, std::span<std::int32_t> out) const;
};
static_assert(sizeof(Text) % sizeof(std::uint64_t) == 0);

/// A text that is put once more becomes the youngest again: its age is that of its last use. The table of
/// texts grows and shrinks one bucket at a time (linear hashing), so that no call has to rehash them all.
///
/// Texts are written one after another into chunks. A chunk of which a quarter is idle is given up: the texts
/// that are left in it move, so a pointer to a text is good until the next call that changes anything.
class TextStore {
 public:
  TextStore() = default;
  TextStore(const TextStore&) = delete;
  TextStore& operator=(const TextStore&) = delete;
  ~TextStore() { clear(); }

  /// Adds a text (not empty, no token negative) with so many uses (1..kMaxUses), or these to an equal one, at
  /// the young end. O(tokens). Throws std::bad_alloc, unchanged.
  void put(std::span<const std::int32_t> tokens, std::uint32_t uses = 1);
  /// Adds a text at the old end, apart from equal ones, for an owner. O(tokens). Throws std::bad_alloc,
  /// unchanged.
  void put_oldest(std::span<const std::int32_t> tokens, std::uint32_t owner, std::uint32_t uses = 1);
  /// Keeps the first `size` tokens of a text, which is shared no longer; of none, forgets it. Returns how
  /// many other texts had to move, three at most for each that was forgotten, amortized.
  std::size_t cut(Text* text, std::uint32_t size) noexcept;
  /// Forgets everything. O(texts).
  void clear() noexcept;

  Text* oldest() const { return oldest_; }
  /// Begins to read the texts that have no owner, the oldest first, instead of any earlier reading.
  void begin_reading();
  /// The next of them, nullptr at the end. Between the calls anything may change: a text that is there from
  /// the beginning to the end is read once, one that comes or goes meanwhile at most once. O(1) amortized.
  const Text* read_next();
  /// The owner's text. O(texts that have owners).
  Text* owned_by(std::uint32_t owner) const;
  std::size_t memory_bytes() const {
    return chunk_bytes_ + chunks_.capacity() * sizeof(Chunk) + buckets_.memory_bytes();
  }

 private:
  static constexpr std::size_t kMaxChunkBytes =
      kMappedBytes;  // a mapping: what is given up leaves the process

  struct Chunk {
    std::byte* data = nullptr;  // nullptr: its place is free
    std::size_t capacity = 0;
    std::size_t end = 0;   // of what was written
    std::size_t live = 0;  // bytes of texts that are still wanted
  };

  Text* make(std::span<const std::int32_t> tokens, std::uint32_t hash, std::uint32_t uses);
  Text** bucket_of(std::uint32_t hash);
  Text* find(std::uint32_t hash, std::span<const std::int32_t> tokens, std::uint32_t more_uses);
  void share(Text* text);
  Text** link_to(const Text* text) noexcept;
  void unshare(Text* text) noexcept;
  void split_bucket();
  void merge_bucket() noexcept;
  void link_youngest(Text* text) noexcept;
  void unlink(Text* text) noexcept;
  void* allocate(std::size_t bytes);
  void open_chunk(std::size_t bytes);
  std::size_t free(Text* text) noexcept;
  std::size_t give_up_if_airy(std::uint32_t number);
  void move(Text* text);
  void release_chunk(std::uint32_t number) noexcept;

  Text* oldest_ = nullptr;
  Text* youngest_ = nullptr;
  Text* unread_ = nullptr;          // of the current reading; it and all that are younger may be unread
  std::uint32_t num_readings_ = 0;  // begun
  PodArray<Text*> buckets_;         // lists of the shared texts
  std::size_t num_shared_ = 0;
  std::vector<Chunk> chunks_;
  std::uint32_t last_chunk_ = 0;  // the one that is written to
  std::size_t chunk_bytes_ = 0;   // memory of all chunks
  std::size_t live_bytes_ = 0;
};

}  // namespace agentspec
