#include "core/index/text_store.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace agentspec {
namespace {

std::uint64_t extended(std::uint64_t hash, std::int32_t token) {
  return (std::rotl(hash, 5) ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
}

std::uint32_t finished(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

std::uint32_t hash_of(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0;
  for (const std::int32_t token : tokens) hash = extended(hash, token);
  return finished(hash);
}

std::uint16_t width_of(std::span<const std::int32_t> tokens) {
  std::uint32_t all = 1;
  for (const std::int32_t token : tokens) all |= static_cast<std::uint32_t>(token);
  return static_cast<std::uint16_t>(std::bit_width(all));
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

const std::uint64_t* words_of(const Text& text) { return reinterpret_cast<const std::uint64_t*>(&text + 1); }

bool is_beginning(const Text& text, std::span<const std::int32_t> tokens) {
  if (text.size > tokens.size()) return false;
  for (std::size_t i = 0; i < text.size; ++i) {
    if (unpack(words_of(text), i, text.width) != tokens[i]) return false;
  }
  return true;
}

bool is_equal(const Text& text, std::span<const std::int32_t> tokens) {
  return text.size == tokens.size() && is_beginning(text, tokens);
}

}  // namespace

void Text::read(std::size_t begin, std::span<std::int32_t> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = unpack(words_of(*this), begin + i, width);
}

void TextStore::put(std::span<const std::int32_t> tokens, std::uint32_t uses) {
  const std::uint32_t hash = hash_of(tokens);
  Text* text = find(hash, tokens, uses);
  if (text == nullptr) {
    text = make(tokens, hash, uses);
    share(text);
  } else {
    text->uses += uses;
    if (text == youngest_) return;
    unlink(text);
  }
  link_youngest(text);
}

void TextStore::put_oldest(std::span<const std::int32_t> tokens, std::uint32_t owner, std::uint32_t uses) {
  Text* text = make(tokens, 0, uses);
  text->owner = owner;
  link_oldest(text);
}

void TextStore::set_apart(std::span<const std::int32_t> tokens, std::size_t piece) noexcept {
  std::uint64_t hash = 0;
  for (std::size_t size = 1; size <= tokens.size(); ++size) {
    hash = extended(hash, tokens[size - 1]);
    if (size != tokens.size() && size % piece != 0) continue;
    while (Text* text = find(finished(hash), tokens.first(size), 0)) {
      unshare(text);
      unlink(text);
      link_oldest(text);
    }
  }
}

Text* TextStore::find_rest(std::span<const std::int32_t> tokens) const {
  for (Text* text = oldest_; text != nullptr && !text->is_shared; text = text->newer) {
    if (text->owner == Text::kNoOwner && is_beginning(*text, tokens)) return text;
  }
  return nullptr;
}

void TextStore::begin_reading() {
  ++num_readings_;
  unread_ = oldest_;
}

const Text* TextStore::read_next() {
  while (unread_ != nullptr) {
    Text* text = std::exchange(unread_, unread_->newer);
    if (text->owner != Text::kNoOwner || text->read_in == num_readings_) continue;
    text->read_in = num_readings_;
    return text;
  }
  return nullptr;
}

Text* TextStore::owned_by(std::uint32_t owner) const {
  Text* text = oldest_;
  while (text->owner != owner) text = text->newer;
  return text;
}

std::size_t TextStore::cut(Text* text, std::uint32_t size) noexcept {
  if (text->is_shared) unshare(text);
  text->size = size;
  if (size > 0) return 0;
  unlink(text);
  return free(text);
}

void TextStore::clear() noexcept {
  for (std::uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) release_chunk(chunk);
  std::vector<Chunk>().swap(chunks_);
  last_chunk_ = 0;
  live_bytes_ = 0;
  oldest_ = youngest_ = unread_ = nullptr;
  buckets_.release();
  num_shared_ = 0;
}

// ---- texts --------------------------------------------------------------------------------------------

Text* TextStore::make(std::span<const std::int32_t> tokens, std::uint32_t hash, std::uint32_t uses) {
  Text header{};
  header.hash = hash;
  header.size = header.stored_size = static_cast<std::uint32_t>(tokens.size());
  header.uses = uses;
  header.owner = Text::kNoOwner;
  header.width = width_of(tokens);
  void* place = allocate(header.bytes());
  header.chunk = last_chunk_;
  Text* text = new (place) Text(header);
  auto* words = reinterpret_cast<std::uint64_t*>(text + 1);
  std::fill_n(words, (header.bytes() - sizeof(Text)) / sizeof(std::uint64_t), std::uint64_t{0});
  for (std::size_t i = 0; i < tokens.size(); ++i) pack(words, i, header.width, tokens[i]);
  return text;
}

// Returns the number of other texts that moved.
std::size_t TextStore::free(Text* text) noexcept {
  Chunk& chunk = chunks_[text->chunk];
  text->uses = 0;
  chunk.live -= text->bytes();
  live_bytes_ -= text->bytes();
  if (text->chunk == last_chunk_) {
    if (chunk.live == 0) chunk.end = 0;
    return 0;
  }
  try {
    return give_up_if_airy(text->chunk);
  } catch (const std::bad_alloc&) {  // a later call tries again
    return 0;
  }
}

void TextStore::link_youngest(Text* text) noexcept {
  text->older = youngest_;
  text->newer = nullptr;
  (youngest_ == nullptr ? oldest_ : youngest_->newer) = text;
  youngest_ = text;
}

void TextStore::link_oldest(Text* text) noexcept {
  text->older = nullptr;
  text->newer = oldest_;
  (oldest_ == nullptr ? youngest_ : oldest_->older) = text;
  oldest_ = text;
}

void TextStore::unlink(Text* text) noexcept {
  if (text == unread_) unread_ = text->newer;
  (text->older == nullptr ? oldest_ : text->older->newer) = text->newer;
  (text->newer == nullptr ? youngest_ : text->newer->older) = text->older;
}

// ---- chunks -------------------------------------------------------------------------------------------

void* TextStore::allocate(std::size_t bytes) {
  if (chunks_.empty() || chunks_[last_chunk_].end + bytes > chunks_[last_chunk_].capacity) open_chunk(bytes);
  Chunk& chunk = chunks_[last_chunk_];
  void* place = chunk.data + chunk.end;
  chunk.end += bytes;
  chunk.live += bytes;
  live_bytes_ += bytes;
  return place;
}

// Chunks grow with the store, so that little of the last one is unused.
void TextStore::open_chunk(std::size_t bytes) {
  constexpr std::size_t kMinChunkBytes = 512;
  if (!chunks_.empty() && chunks_[last_chunk_].live == 0) release_chunk(last_chunk_);
  Chunk chunk;
  chunk.capacity = std::max(bytes, std::clamp(live_bytes_ / 8, kMinChunkBytes, kMaxChunkBytes));
  auto place =
      std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& known) { return known.data == nullptr; });
  if (place == chunks_.end()) place = chunks_.insert(place, Chunk{});
  chunk.data = static_cast<std::byte*>(reallocate(nullptr, 0, chunk.capacity, 0));
  chunk_bytes_ += chunk.capacity;
  *place = chunk;
  last_chunk_ = static_cast<std::uint32_t>(place - chunks_.begin());
}

// Moves the remaining texts to the end of the last chunk.
std::size_t TextStore::give_up_if_airy(std::uint32_t number) {
  const Chunk chunk = chunks_[number];
  if (chunk.live >= chunk.capacity / 4 * 3) return 0;
  std::size_t num_moved = 0;
  for (std::size_t at = 0; at < chunk.end;) {
    Text* text = reinterpret_cast<Text*>(chunk.data + at);
    at += text->bytes();
    if (text->uses == 0) continue;
    move(text);
    ++num_moved;
  }
  release_chunk(number);
  return num_moved;
}

// Updates all pointers to the text.
void TextStore::move(Text* text) {
  auto* moved = static_cast<Text*>(allocate(text->bytes()));
  if (text == unread_) unread_ = moved;
  if (text->is_shared) *link_to(text) = moved;
  std::memcpy(static_cast<void*>(moved), text, text->bytes());
  moved->chunk = last_chunk_;
  (text->older == nullptr ? oldest_ : text->older->newer) = moved;
  (text->newer == nullptr ? youngest_ : text->newer->older) = moved;
  text->uses = 0;
  chunks_[text->chunk].live -= text->bytes();
  live_bytes_ -= text->bytes();
}

void TextStore::release_chunk(std::uint32_t number) noexcept {
  Chunk& chunk = chunks_[number];
  if (chunk.data == nullptr) return;
  chunk_bytes_ -= chunk.capacity;
  deallocate(chunk.data, chunk.capacity);
  chunk = Chunk{};
}

// ---- equal texts --------------------------------------------------------------------------------------

// With 2^k < n <= 2^(k+1) buckets, a bucket is already split if it has a buddy 2^k further on.
Text** TextStore::bucket_of(std::uint32_t hash) {
  const std::size_t mask = std::bit_ceil(buckets_.size()) - 1;
  const std::size_t bucket = hash & mask;
  return &buckets_[bucket < buckets_.size() ? bucket : bucket & mask >> 1];
}

Text* TextStore::find(std::uint32_t hash, std::span<const std::int32_t> tokens, std::uint32_t more_uses) {
  if (buckets_.size() == 0) return nullptr;
  for (Text* text = *bucket_of(hash); text != nullptr; text = text->next) {
    if (text->hash == hash && text->uses + more_uses <= Text::kMaxUses && is_equal(*text, tokens))
      return text;
  }
  return nullptr;
}

// Frees the text if there is no memory for its bucket.
void TextStore::share(Text* text) {
  try {
    if (num_shared_ == buckets_.size()) split_bucket();
  } catch (const std::bad_alloc&) {
    free(text);
    throw;
  }
  Text** bucket = bucket_of(text->hash);
  text->next = *bucket;
  *bucket = text;
  text->is_shared = true;
  ++num_shared_;
}

// Returns the pointer to the text within the list of its bucket.
Text** TextStore::link_to(const Text* text) noexcept {
  Text** link = bucket_of(text->hash);
  while (*link != text) link = &(*link)->next;
  return link;
}

void TextStore::unshare(Text* text) noexcept {
  *link_to(text) = text->next;
  text->is_shared = false;
  if (--num_shared_ < buckets_.size() / 2) merge_bucket();
}

// Adds a bucket, and distributes its buddy's texts between the two.
void TextStore::split_bucket() {
  buckets_.push_back(nullptr);
  const std::size_t made = buckets_.size() - 1;
  if (made == 0) return;
  Text* text = std::exchange(buckets_[made - std::bit_floor(made)], nullptr);
  while (text != nullptr) {
    Text** bucket = bucket_of(text->hash);
    Text* next = std::exchange(text->next, *bucket);
    *bucket = text;
    text = next;
  }
}

// Removes the last bucket, and adds its texts to its buddy's.
void TextStore::merge_bucket() noexcept {
  const std::size_t last = buckets_.size() - 1;
  if (last == 0) return;
  Text** end = &buckets_[last - std::bit_floor(last)];
  while (*end != nullptr) end = &(*end)->next;
  *end = buckets_[last];
  buckets_.truncate(last);
}

}  // namespace agentspec
