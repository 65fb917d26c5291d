#include "core/text_store.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr std::uint32_t kMaxTokens = (1u << 26) - 1;

std::uint32_t hash_of(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = tokens.size();
  for (const std::int32_t token : tokens) {
    hash = (std::rotl(hash, 5) ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  }
  return static_cast<std::uint32_t>(hash >> 32);
}

std::uint32_t width_of(std::span<const std::int32_t> tokens) {
  std::uint32_t all = 1;
  for (const std::int32_t token : tokens) all |= static_cast<std::uint32_t>(token);
  return static_cast<std::uint32_t>(std::bit_width(all));
}

std::int32_t unpack(const std::uint64_t* words, std::size_t i, std::uint32_t width) {
  const std::size_t bit = i * width;
  const std::size_t shift = bit % 64;
  std::uint64_t value = words[bit / 64] >> shift;
  if (shift + width > 64) value |= words[bit / 64 + 1] << (64 - shift);
  return static_cast<std::int32_t>(value & ((std::uint64_t{1} << width) - 1));
}

void pack(std::uint64_t* words, std::size_t i, std::uint32_t width, std::int32_t token) {
  const std::size_t bit = i * width;
  const std::size_t shift = bit % 64;
  const std::uint64_t value = static_cast<std::uint32_t>(token);
  words[bit / 64] |= value << shift;
  if (shift + width > 64) words[bit / 64 + 1] |= value >> (64 - shift);
}

}  // namespace

TextId TextStore::put(std::span<const std::int32_t> tokens) {
  if (tokens.size() > kMaxTokens) throw CapacityError("a sequence is too long to be stored");
  const std::uint32_t hash = hash_of(tokens);
  TextId id = find(hash, tokens);
  if (id != kNone) {
    const Text old = texts_[id];
    write(texts_[id], tokens);
    erase_words(old);
    ++texts_[id].uses;
    return id;
  }
  if (num_texts_ >= buckets_.size()) rehash(std::max<std::size_t>(8, buckets_.size() * 2));
  if (free_text_ == kNone) {
    free_text_ = static_cast<TextId>(texts_.size());
    texts_.push_back(Text{});
    texts_[free_text_].next = kNone;
  }
  id = free_text_;
  const std::uint32_t next_free = texts_[id].next;
  Text text{};
  text.hash = hash;
  text.uses = 1;
  text.size = static_cast<std::uint32_t>(tokens.size()) & kMaxTokens;
  text.width = width_of(tokens) & 63;
  write(text, tokens);
  texts_[id] = text;
  free_text_ = next_free;
  used_bytes_ += sizeof(Text);
  insert(id);
  return id;
}

void TextStore::drop(TextId id) {
  if (--texts_[id].uses > 0) return;
  unlink(id);
  erase_words(texts_[id]);
  texts_[id].next = free_text_;
  free_text_ = id;
  used_bytes_ -= sizeof(Text);
  if (num_texts_ < buckets_.size() / 4) rehash(buckets_.size() / 2);
}

void TextStore::read(TextId id, std::size_t begin, std::span<std::int32_t> out) const {
  const Text& text = texts_[id];
  const std::uint64_t* words = chunks_[text.chunk].words.data() + text.begin;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = unpack(words, begin + i, text.width);
}

std::size_t TextStore::memory_bytes() const {
  return texts_.memory_bytes() + buckets_.memory_bytes() + words_bytes_ + chunks_.capacity() * sizeof(Chunk) +
         free_chunks_.capacity() * sizeof(std::uint32_t);
}

TextId TextStore::find(std::uint32_t hash, std::span<const std::int32_t> tokens) const {
  if (buckets_.size() == 0) return kNone;
  TextId id = buckets_[hash & (buckets_.size() - 1)];
  while (id != kNone && !(texts_[id].hash == hash && is_equal(texts_[id], tokens))) id = texts_[id].next;
  return id;
}

bool TextStore::is_equal(const Text& text, std::span<const std::int32_t> tokens) const {
  if (text.size != tokens.size()) return false;
  const std::uint64_t* words = chunks_[text.chunk].words.data() + text.begin;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (unpack(words, i, text.width) != tokens[i]) return false;
  }
  return true;
}

// Packs the tokens behind everything that was written before.
void TextStore::write(Text& text, std::span<const std::int32_t> tokens) {
  const std::size_t num_words = text.num_words();
  const bool has_room = last_chunk_ != kNone && chunks_[last_chunk_].words.size() + num_words <= kChunkWords;
  text.chunk = has_room ? last_chunk_ : open_chunk(num_words);
  Chunk& chunk = chunks_[text.chunk];
  words_bytes_ -= chunk.words.memory_bytes();
  text.begin = static_cast<std::uint32_t>(chunk.words.extend(num_words));
  words_bytes_ += chunk.words.memory_bytes();
  std::uint64_t* words = chunk.words.data() + text.begin;
  std::fill_n(words, num_words, std::uint64_t{0});
  for (std::size_t i = 0; i < tokens.size(); ++i) pack(words, i, text.width, tokens[i]);
  chunk.num_live += num_words;
  used_bytes_ += num_words * sizeof(std::uint64_t);
}

void TextStore::erase_words(const Text& text) {
  Chunk& chunk = chunks_[text.chunk];
  chunk.num_live -= text.num_words();
  used_bytes_ -= text.num_words() * sizeof(std::uint64_t);
  if (chunk.num_live > 0) return;
  words_bytes_ -= chunk.words.memory_bytes();
  chunk.words.release();
  if (text.chunk != last_chunk_) free_chunks_.push_back(text.chunk);
}

// The first chunk grows as it is filled; from the second on, a chunk is a mapping of its own.
std::uint32_t TextStore::open_chunk(std::size_t num_words) {
  if (last_chunk_ != kNone && chunks_[last_chunk_].num_live == 0) return last_chunk_;
  std::uint32_t opened = static_cast<std::uint32_t>(chunks_.size());
  if (free_chunks_.empty()) {
    chunks_.emplace_back();
  } else {
    opened = free_chunks_.back();
    free_chunks_.pop_back();
  }
  if (last_chunk_ != kNone) chunks_[opened].words.reserve(std::max(num_words, kChunkWords));
  words_bytes_ += chunks_[opened].words.memory_bytes();
  if (num_words < kChunkWords) last_chunk_ = opened;
  return opened;
}

void TextStore::insert(TextId id) {
  std::uint32_t& first = buckets_[texts_[id].hash & (buckets_.size() - 1)];
  texts_[id].next = first;
  first = id;
  ++num_texts_;
}

void TextStore::unlink(TextId id) {
  std::uint32_t* link = &buckets_[texts_[id].hash & (buckets_.size() - 1)];
  while (*link != id) link = &texts_[*link].next;
  *link = texts_[id].next;
  --num_texts_;
}

void TextStore::rehash(std::size_t num_buckets) {
  PodArray<std::uint32_t> old = std::move(buckets_);
  buckets_ = PodArray<std::uint32_t>();
  buckets_.extend(num_buckets);
  std::fill_n(buckets_.data(), num_buckets, kNone);
  for (std::size_t i = 0; i < old.size(); ++i) {
    for (TextId id = old[i]; id != kNone;) {
      const TextId next = texts_[id].next;
      std::uint32_t& first = buckets_[texts_[id].hash & (num_buckets - 1)];
      texts_[id].next = first;
      first = id;
      id = next;
    }
  }
}

}  // namespace agentspec
