// The packed texts of finished sequences, from the oldest to the youngest. Equal texts are stored once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/pod_array.hpp"

namespace agentspec {

/// The header of a text. The packed tokens follow it in memory. Each takes as many bits as the text's largest
/// token needs: 17 for a vocabulary of 131,072.
struct Text {
  static constexpr std::uint32_t kNoOwner = 0xFFFFFFFFu;
  static constexpr std::uint32_t kMaxUses = 0xFFFF;  // further equal texts are stored as a new one

  Text* older;
  Text* newer;
  Text* next;  // in the same bucket
  std::uint32_t hash;
  std::uint32_t size;         // remaining tokens
  std::uint32_t stored_size;  // tokens when it was stored
  std::uint32_t uses;
  std::uint32_t owner;
  std::uint32_t chunk;    // number of the chunk that holds it
  std::uint16_t width;    // bits per token
  bool is_shared;         // listed in a bucket, so that put() finds it for equal tokens
  std::uint32_t read_in;  // number of the last reading that returned it

  std::size_t bytes() const {
    return sizeof(Text) + (std::size_t{stored_size} * width + 63) / 64 * sizeof(std::uint64_t);
  }
  /// Copies tokens [begin, begin + out.size()). O(out).
  void read(std::size_t begin, std::span<std::int32_t> out) const;
};
static_assert(sizeof(Text) % sizeof(std::uint64_t) == 0);

/// Texts by age, with a hash table to find equal ones. A text that is put again becomes the youngest. The
/// table grows and shrinks one bucket at a time (linear hashing), so that no call has to rehash all texts.
///
/// Texts are written one after another into chunks. A chunk that is more than a quarter unused is freed, and
/// its remaining texts move. A pointer to a text is therefore valid until the next call that changes the
/// store.
class TextStore {
 public:
  TextStore() = default;
  TextStore(const TextStore&) = delete;
  TextStore& operator=(const TextStore&) = delete;
  ~TextStore() { clear(); }

  /// Adds a text (not empty, no token negative) as the youngest, with `uses` (1..kMaxUses). If an equal text
  /// exists, adds the uses to it and makes it the youngest. O(tokens). Throws std::bad_alloc and changes
  /// nothing.
  void put(std::span<const std::int32_t> tokens, std::uint32_t uses = 1);
  /// Adds an owner's text as the oldest, without merging equal ones. O(tokens). Throws std::bad_alloc and
  /// changes nothing.
  void put_oldest(std::span<const std::int32_t> tokens, std::uint32_t owner, std::uint32_t uses = 1);
  /// Makes the texts that equal `tokens`, or their first `n * piece` tokens, the oldest and no longer shared.
  /// O(tokens).
  void set_apart(std::span<const std::int32_t> tokens, std::size_t piece) noexcept;
  /// Returns a text without an owner that is no longer shared and that `tokens` begins with, or nullptr.
  /// These texts are the oldest. O(their tokens).
  Text* find_rest(std::span<const std::int32_t> tokens) const;
  /// Keeps the first `size` tokens of a text, which is then no longer shared. Removes the text if `size` is
  /// 0. Returns the number of other texts that moved, amortized at most three per removed text.
  std::size_t cut(Text* text, std::uint32_t size) noexcept;
  /// Removes everything. O(texts).
  void clear() noexcept;

  Text* oldest() const { return oldest_; }
  /// Starts reading the texts without owners, the oldest first. This ends any earlier reading.
  void begin_reading();
  /// Returns the next of them, or nullptr at the end. The store may change between calls. A text that exists
  /// throughout is read once; one that is added or removed meanwhile, at most once. O(1) amortized.
  const Text* read_next();
  /// The owner's text. O(texts with owners).
  Text* owned_by(std::uint32_t owner) const;
  std::size_t memory_bytes() const {
    return chunk_bytes_ + chunks_.capacity() * sizeof(Chunk) + buckets_.memory_bytes();
  }

 private:
  static constexpr std::size_t kMaxChunkBytes =
      kMappedBytes;  // a mapping, so that freed chunks return to the system

  struct Chunk {
    std::byte* data = nullptr;  // nullptr: the entry is free
    std::size_t capacity = 0;
    std::size_t end = 0;   // of the written bytes
    std::size_t live = 0;  // bytes of texts in use
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
  void link_oldest(Text* text) noexcept;
  void unlink(Text* text) noexcept;
  void* allocate(std::size_t bytes);
  void open_chunk(std::size_t bytes);
  std::size_t free(Text* text) noexcept;
  std::size_t give_up_if_airy(std::uint32_t number);
  void move(Text* text);
  void release_chunk(std::uint32_t number) noexcept;

  Text* oldest_ = nullptr;
  Text* youngest_ = nullptr;
  Text* unread_ = nullptr;          // of the current reading; it and all younger ones may be unread
  std::uint32_t num_readings_ = 0;  // readings begun so far
  PodArray<Text*> buckets_;         // lists of the shared texts
  std::size_t num_shared_ = 0;
  std::vector<Chunk> chunks_;
  std::uint32_t last_chunk_ = 0;  // the chunk that new texts are written to
  std::size_t chunk_bytes_ = 0;   // memory of all chunks
  std::size_t live_bytes_ = 0;
};

}  // namespace agentspec
