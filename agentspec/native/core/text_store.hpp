// The texts of finished sequences, packed, equal ones once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/pod_array.hpp"

namespace agentspec {

using TextId = std::uint32_t;

/// Tokens take as many bits as the largest of a text needs: 17 for a vocabulary of 131,072. Texts are written
/// one after another into chunks; a chunk goes when its last text does. A text that is stored again moves to
/// the end, so what is kept longest lies together.
class TextStore {
 public:
  /// Stores a text (not empty, no token negative), or counts one use more of an equal one. O(tokens).
  TextId put(std::span<const std::int32_t> tokens);
  /// Ends one use. O(1).
  void drop(TextId id);
  /// Copies tokens [begin, begin + out.size()) of a text. O(out).
  void read(TextId id, std::size_t begin, std::span<std::int32_t> out) const;

  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  static constexpr std::size_t kChunkWords = kMappedBytes / sizeof(std::uint64_t);

  struct Text {
    std::uint32_t hash;
    std::uint32_t next;  // text with the same bucket; of a free one: the next free one
    std::uint32_t uses;
    std::uint32_t chunk;
    std::uint32_t begin;  // first word in the chunk
    std::uint32_t size : 26;
    std::uint32_t width : 6;  // bits per token
    std::size_t num_words() const { return (std::size_t{size} * width + 63) / 64; }
  };
  struct Chunk {
    PodArray<std::uint64_t> words;
    std::size_t num_live = 0;  // words of texts that are still in use
  };

  TextId find(std::uint32_t hash, std::span<const std::int32_t> tokens) const;
  bool is_equal(const Text& text, std::span<const std::int32_t> tokens) const;
  void write(Text& text, std::span<const std::int32_t> tokens);
  void erase_words(const Text& text);
  std::uint32_t open_chunk(std::size_t num_words);
  void insert(TextId id);
  void unlink(TextId id);
  void rehash(std::size_t num_buckets);

  PodArray<Text> texts_;
  std::uint32_t free_text_ = kNone;
  std::size_t num_texts_ = 0;
  PodArray<std::uint32_t> buckets_;  // first text of each; a power of two of them
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> free_chunks_;
  std::uint32_t last_chunk_ = kNone;  // the one that is written to
  std::size_t used_bytes_ = 0;
  std::size_t words_bytes_ = 0;  // memory of all chunks' words
};

}  // namespace agentspec
