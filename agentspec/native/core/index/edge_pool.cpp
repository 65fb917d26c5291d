#include "core/index/edge_pool.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <random>

#include "core/error.hpp"

namespace agentspec {

std::uint32_t IdPool::acquire() {
  for (; lowest_ < has_free_.size(); ++lowest_) {
    if (has_free_[lowest_] == 0) continue;
    const std::uint32_t word =
        lowest_ * 64 + static_cast<std::uint32_t>(std::countr_zero(has_free_[lowest_]));
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(free_[word]));
    free_[word] &= free_[word] - 1;
    if (free_[word] == 0) has_free_[lowest_] &= has_free_[lowest_] - 1;
    ++num_used_;
    return word * 64 + bit;
  }
  if (end_ / 64 == free_.size()) {  // both grow before either counts, so that a failure changes nothing
    if (end_ / 4096 == has_free_.size()) has_free_.push_back(0);
    free_.push_back(0);
  }
  ++num_used_;
  return end_++;
}

void IdPool::release(std::uint32_t id) {
  --num_used_;
  free_[id / 64] |= std::uint64_t{1} << (id % 64);
  has_free_[id / 4096] |= std::uint64_t{1} << (id / 64 % 64);
  lowest_ = std::min(lowest_, id / 4096);
  if (id + 1 == end_) cut_end();
}

void IdPool::release_all_but_first() noexcept {
  free_.truncate(1);
  has_free_.truncate(1);
  free_[0] = has_free_[0] = 0;
  end_ = 1;
  lowest_ = 0;
  num_used_ = 1;
}

// Lowers end() past all free numbers directly before it.
void IdPool::cut_end() {
  while (end_ > 0 && !is_used(end_ - 1)) {
    --end_;
    const std::uint32_t word = end_ / 64;
    free_[word] &= ~(std::uint64_t{1} << (end_ % 64));
    if (free_[word] == 0) has_free_[word / 64] &= ~(std::uint64_t{1} << (word % 64));
  }
  free_.truncate((end_ + 63) / 64);
  has_free_.truncate((free_.size() + 63) / 64);
}

namespace {

/// Odd and random per process, so that clients cannot choose tokens that collide (multiply-shift hashing).
const std::uint64_t kMultiplier = [] {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random() | 1;
}();

/// First slot to probe for a token in a table of `size` slots.
std::size_t home(std::int32_t token, std::size_t size) {
  const std::uint64_t hash = static_cast<std::uint32_t>(token) * kMultiplier >> 32;
  return (hash * size) >> 32;
}

/// Most edges in a block: all slots of a dense block, four fifths of a table.
std::size_t max_edges(std::size_t slots) { return slots <= 8 ? slots : (slots - 1) * 4 / 5; }

}  // namespace

const Edge* EdgePool::find_slot(const EdgeList& list, std::int32_t token) const {
  const Edge* slots = begin(list);
  const std::size_t num_slots = block_slots(list);
  if (!is_hashed(list)) {
    for (std::size_t i = 0; i < num_slots; ++i) {
      if (slots[i].token == token) return slots + i;
    }
    return nullptr;
  }
  const std::size_t size = num_slots - 1;
  const Edge* table = slots + 1;
  for (std::size_t i = home(token, size);; i = i + 1 == size ? 0 : i + 1) {
    if (table[i].token == token) return table + i;
    if (table[i].token == kNoToken) return nullptr;
  }
}

const StateId* EdgePool::find(const EdgeList& list, std::int32_t token) const {
  if (list.best_token == token) return &list.best_target;
  if (list.block_class == 0) return nullptr;
  const Edge* slot = find_slot(list, token);
  return slot == nullptr ? nullptr : &slot->target;
}

void EdgePool::prefetch(const EdgeList& list, std::int32_t token) const {
  prefetch(list);
  if (is_hashed(list)) __builtin_prefetch(begin(list) + 1 + home(token, block_slots(list) - 1));
}

std::size_t EdgePool::size(const EdgeList& list) const {
  if (list.is_empty()) return 0;
  if (list.block_class == 0) return 1;
  if (is_hashed(list)) return 1 + static_cast<std::size_t>(begin(list)->token);
  const Edge* slots = begin(list);
  const auto is_used = [](const Edge& edge) { return edge.token != kNoToken; };
  return 1 + static_cast<std::size_t>(std::count_if(slots, slots + block_slots(list), is_used));
}

void EdgePool::add(EdgeList& list, std::int32_t token, StateId target) {
  if (list.is_empty()) {
    list.best_token = token;
    list.best_target = target;
    return;
  }
  put(list, token, target);
}

void EdgePool::put(EdgeList& list, std::int32_t token, StateId target) {
  if (list.block_class == 0) resize(list, 1);
  if (is_hashed(list)) {
    if (static_cast<std::size_t>(header(list).token) + 1 > max_edges(block_slots(list))) {
      resize(list, list.block_class + 1);
    }
    const std::size_t size = block_slots(list) - 1;
    Edge* table = begin(list) + 1;
    std::size_t i = home(token, size);
    while (table[i].token != kNoToken) i = i + 1 == size ? 0 : i + 1;
    table[i] = {token, target};
    ++header(list).token;
    return;
  }
  const Edge* slot = find_slot(list, kNoToken);
  if (slot != nullptr) {
    begin(list)[slot - begin(list)] = {token, target};
    return;
  }
  resize(list, list.block_class + 1);
  put(list, token, target);
}

void EdgePool::remove(EdgeList& list, std::int32_t token) {
  if (list.best_token != token) {
    const Edge* slot = find_slot(list, token);
    assert(slot != nullptr);
    take(list, static_cast<std::size_t>(slot - begin(list)));
    return;
  }
  if (list.block_class == 0) {
    list.best_token = kNoToken;
    list.best_target = kNoState;
    return;
  }
  const Edge* slots = begin(list);
  std::size_t slot = is_hashed(list) ? 1 : 0;
  while (slots[slot].token == kNoToken) ++slot;
  list.best_token = slots[slot].token;
  list.best_target = slots[slot].target;
  take(list, slot);
}

// Empties one slot, and resizes or frees the block when most of it is unused.
void EdgePool::take(EdgeList& list, std::size_t slot) {
  const std::size_t slots = block_slots(list);
  if (is_hashed(list)) {
    erase_hashed(list, slot);
    if (static_cast<std::size_t>(header(list).token) * 4 <= slots) resize(list, list.block_class - 1);
    return;
  }
  const std::size_t left = erase_dense(list, slot);
  if (left == 0) {
    deallocate(list.block, list.block_class);
    list.block_class = 0;
    list.block = 0;
  } else if (left * 2 <= slots) {
    resize(list, list.block_class - 1);
  }
}

// Keeps the edges packed at the front. Returns the number of remaining edges.
std::size_t EdgePool::erase_dense(EdgeList& list, std::size_t slot) {
  Edge* slots = begin(list);
  std::size_t last = slot;
  while (last + 1 < block_slots(list) && slots[last + 1].token != kNoToken) ++last;
  slots[slot] = slots[last];
  slots[last].token = kNoToken;
  return last;
}

// Deletes by backward shift, without tombstones, so that probes stay short under any churn.
void EdgePool::erase_hashed(EdgeList& list, std::size_t slot) {
  const std::size_t size = block_slots(list) - 1;
  Edge* table = begin(list) + 1;
  std::size_t hole = slot - 1;
  for (std::size_t i = hole;;) {
    i = i + 1 == size ? 0 : i + 1;
    if (table[i].token == kNoToken) break;
    const std::size_t probed = (i + size - home(table[i].token, size)) % size;
    const std::size_t gap = (i + size - hole) % size;
    if (probed >= gap) {
      table[hole] = table[i];
      hole = i;
    }
  }
  table[hole].token = kNoToken;
  --header(list).token;
}

void EdgePool::promote(EdgeList& list, std::int32_t token) {
  if (list.best_token == token) return;
  const Edge old{list.best_token, list.best_target};
  const Edge* found = find_slot(list, token);
  assert(found != nullptr);
  const auto slot = static_cast<std::size_t>(found - begin(list));
  list.best_token = found->token;
  list.best_target = found->target;
  if (!is_hashed(list)) {
    begin(list)[slot] = old;
    return;
  }
  erase_hashed(list, slot);  // the old best hashes elsewhere, but there is now room for it
  put(list, old.token, old.target);
}

EdgeList EdgePool::copy(const EdgeList& list) {
  EdgeList made = list;
  if (list.block_class == 0) return made;
  made.block = allocate(list.block_class);
  std::copy_n(begin(list), block_slots(list), begin(made));
  return made;
}

void EdgePool::release(EdgeList& list) {
  if (list.block_class != 0) deallocate(list.block, list.block_class);
  list = EdgeList{};
}

void EdgePool::clear() noexcept {
  slabs_.clear();
  slots_.fill(nullptr);
}

void EdgePool::move_down(EdgeList& list) {
  if (list.block_class == 0) return;
  const IdPool& blocks = slabs_[list.block_class - 1].blocks;
  if (blocks.num_used() == blocks.end()) return;
  const EdgeList old = list;
  list.block = allocate(list.block_class);
  if (list.block < old.block) std::copy_n(begin(old), block_slots(old), begin(list));
  deallocate(std::max<std::uint32_t>(list.block, old.block), list.block_class);
  list.block = std::min<std::uint32_t>(list.block, old.block);
}

// Moves the edges that are not inline into a block of another class.
void EdgePool::resize(EdgeList& list, std::uint32_t block_class) {
  EdgeList resized = list;
  resized.block_class = block_class;
  resized.block = allocate(block_class);
  if (is_hashed(resized)) header(resized) = {0, is_hashed(list) ? header(list).target : kNoState};
  if (list.block_class != 0) {
    move(list, resized);
    deallocate(list.block, list.block_class);
  }
  list = resized;
}

void EdgePool::move(const EdgeList& from, EdgeList& to) {
  const std::span slots(begin(from), block_slots(from));
  const std::span edges = is_hashed(from) ? slots.subspan(1) : slots;
  const auto is_used = [](const Edge& edge) { return edge.token != kNoToken; };
  if (!is_hashed(to)) {
    std::copy_if(edges.begin(), edges.end(), begin(to), is_used);
    return;
  }
  for (const Edge& edge : edges) {
    if (is_used(edge)) put(to, edge.token, edge.target);
  }
}

std::uint32_t EdgePool::allocate(std::uint32_t block_class) {
  if (block_class > kMaxClass)
    throw CapacityError("a context has reached the most continuations it can have");
  while (slabs_.size() < block_class) slabs_.emplace_back();
  Slab& slab = slabs_[block_class - 1];
  const std::size_t slots = std::size_t{1} << (block_class - 1);
  const std::uint32_t block = slab.blocks.acquire();
  if (block >= kMaxBlocks) throw CapacityError("the index has reached the most edges it can address");
  if (block * slots == slab.slots.size()) slab.slots.extend(slots);
  slots_[block_class] = slab.slots.data();
  std::fill_n(slab.slots.data() + block * slots, slots, Edge{kNoToken, kNoState});
  return block;
}

void EdgePool::deallocate(std::uint32_t block, std::uint32_t block_class) {
  Slab& slab = slabs_[block_class - 1];
  slab.blocks.release(block);
  slab.slots.truncate(std::size_t{slab.blocks.end()} << (block_class - 1));
  slots_[block_class] = slab.slots.data();
}

std::size_t EdgePool::growth_bytes(const EdgeList& list, std::size_t num_edges) const {
  if (!is_hashed(list)) return 0;  // the block is small
  const std::size_t num_slots = block_slots(list);
  const bool has_room = static_cast<std::size_t>(begin(list)->token) + num_edges <= max_edges(num_slots);
  return has_room ? 0 : 2 * num_slots * sizeof(Edge);
}

std::uint32_t EdgePool::rival_bound(const EdgeList& list) const {
  return is_hashed(list) ? begin(list)->target : kNoState;
}

void EdgePool::set_rival_bound(EdgeList& list, std::uint32_t count) {
  if (is_hashed(list)) header(list).target = count;
}

void EdgePool::note_rival(EdgeList& list, std::uint32_t count) {
  if (is_hashed(list)) header(list).target = std::max(header(list).target, count);
}

std::size_t EdgePool::used_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < slabs_.size(); ++i) bytes += (slabs_[i].blocks.num_used() * sizeof(Edge)) << i;
  return bytes;
}

std::size_t EdgePool::extent_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < slabs_.size(); ++i) bytes += (slabs_[i].blocks.end() * sizeof(Edge)) << i;
  return bytes;
}

std::size_t EdgePool::memory_bytes() const {
  std::size_t bytes = slabs_.capacity() * sizeof(Slab);
  for (const Slab& slab : slabs_) bytes += slab.slots.memory_bytes() + slab.blocks.memory_bytes();
  return bytes;
}

void EdgePool::trim() {
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    slabs_[i].slots.shrink_to_fit();
    slabs_[i].blocks.trim();
    slots_[i + 1] = slabs_[i].slots.data();
  }
}

}  // namespace agentspec
