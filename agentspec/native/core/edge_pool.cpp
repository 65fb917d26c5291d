#include "core/edge_pool.hpp"

#include <algorithm>
#include <cassert>

namespace agentspec {
namespace {

constexpr std::size_t kNotFound = ~std::size_t{0};

/// Where a token's probing starts in a table of `size` slots.
std::size_t home(std::int32_t token, std::size_t size) {
  const std::uint32_t hash = static_cast<std::uint32_t>(token) * 0x9E3779B1u;
  return (static_cast<std::uint64_t>(hash) * size) >> 32;
}

/// Most edges that a block of this class may hold: all of a dense block, four fifths of a table.
std::size_t max_edges(std::size_t slots) { return slots <= 8 ? slots : (slots - 1) * 4 / 5; }

}  // namespace

std::size_t EdgePool::block_slots(const EdgeList& list) {
  return list.block_class == 0 ? 0 : std::size_t{1} << (list.block_class - 1);
}

std::size_t EdgePool::find_slot(const EdgeList& list, std::int32_t token) const {
  const std::size_t begin = list.block;
  const std::size_t slots = block_slots(list);
  if (!is_hashed(list)) {
    for (std::size_t i = begin; i < begin + slots; ++i) {
      if (slots_[i].token == token) return i;
    }
    return kNotFound;
  }
  const std::size_t size = slots - 1;
  const Edge* table = slots_.data() + begin + 1;
  for (std::size_t i = home(token, size);; i = i + 1 == size ? 0 : i + 1) {
    if (table[i].token == token) return begin + 1 + i;
    if (table[i].token == kNoToken) return kNotFound;
  }
}

StateId EdgePool::find(const EdgeList& list, std::int32_t token) const {
  if (list.best_token == token) return list.best_target;
  if (list.block_class == 0) return kNoState;
  const std::size_t slot = find_slot(list, token);
  return slot == kNotFound ? kNoState : slots_[slot].target;
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
    Edge* table = &slots_[list.block + 1];
    std::size_t i = home(token, size);
    while (table[i].token != kNoToken) i = i + 1 == size ? 0 : i + 1;
    table[i] = {token, target};
    ++header(list).token;
    return;
  }
  const std::size_t slot = find_slot(list, kNoToken);
  if (slot != kNotFound) {
    slots_[slot] = {token, target};
    return;
  }
  resize(list, list.block_class + 1);
  put(list, token, target);
}

bool EdgePool::retarget(EdgeList& list, std::int32_t token, StateId from, StateId to) {
  if (list.best_token == token) {
    if (list.best_target != from) return false;
    list.best_target = to;
    return true;
  }
  if (list.block_class == 0) return false;
  const std::size_t slot = find_slot(list, token);
  if (slot == kNotFound || slots_[slot].target != from) return false;
  slots_[slot].target = to;
  return true;
}

void EdgePool::remove(EdgeList& list, std::int32_t token) {
  if (list.best_token != token) {
    const std::size_t slot = find_slot(list, token);
    assert(slot != kNotFound);
    take(list, slot);
    return;
  }
  if (list.block_class == 0) {
    list.best_token = kNoToken;
    list.best_target = kNoState;
    return;
  }
  std::size_t slot = list.block + (is_hashed(list) ? 1 : 0);
  while (slots_[slot].token == kNoToken) ++slot;
  list.best_token = slots_[slot].token;
  list.best_target = slots_[slot].target;
  take(list, slot);
}

// Empties one slot and gives memory back when most of the block is unused.
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

// Keeps the edges packed at the front; returns how many are left.
std::size_t EdgePool::erase_dense(EdgeList& list, std::size_t slot) {
  const std::size_t end = list.block + block_slots(list);
  std::size_t last = slot;
  while (last + 1 < end && slots_[last + 1].token != kNoToken) ++last;
  slots_[slot] = slots_[last];
  slots_[last].token = kNoToken;
  return last - list.block;
}

// Deletion by backward shift: no tombstones, so that probes stay short whatever the churn.
void EdgePool::erase_hashed(EdgeList& list, std::size_t slot) {
  const std::size_t size = block_slots(list) - 1;
  Edge* table = &slots_[list.block + 1];
  std::size_t hole = slot - (list.block + 1);
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
  const std::size_t slot = find_slot(list, token);
  assert(slot != kNotFound);
  list.best_token = slots_[slot].token;
  list.best_target = slots_[slot].target;
  if (!is_hashed(list)) {
    slots_[slot] = old;
    return;
  }
  erase_hashed(list, slot);  // the old best hashes elsewhere, but there is room for it now
  put(list, old.token, old.target);
}

EdgeList EdgePool::copy_from(const EdgePool& pool, const EdgeList& list) {
  EdgeList made = list;
  if (list.block_class == 0) return made;
  made.block = allocate(list.block_class);
  const std::size_t slots = block_slots(list);
  for (std::size_t i = 0; i < slots; ++i) slots_[made.block + i] = pool.slots_[list.block + i];
  return made;
}

void EdgePool::release(EdgeList& list) {
  if (list.block_class != 0) deallocate(list.block, list.block_class);
  list = EdgeList{};
}

// Moves the edges that are not inline into a block of another class.
void EdgePool::resize(EdgeList& list, std::uint32_t block_class) {
  EdgeList resized = list;
  resized.block_class = block_class;
  resized.block = allocate(block_class);
  if (is_hashed(resized)) header(resized) = {0, is_hashed(list) ? header(list).target : kNoState};
  const std::size_t end = list.block + block_slots(list);
  for (std::size_t i = list.block + (is_hashed(list) ? 1 : 0); i < end; ++i) {
    const Edge edge = slots_[i];
    if (edge.token != kNoToken) put(resized, edge.token, edge.target);
  }
  if (list.block_class != 0) deallocate(list.block, list.block_class);
  list = resized;
}

std::uint32_t EdgePool::allocate(std::uint32_t block_class) {
  const std::size_t slots = std::size_t{1} << (block_class - 1);
  std::uint32_t block = free_[block_class];
  if (block != kNoBlock) {
    free_[block_class] = slots_[block].target;
  } else {
    block = static_cast<std::uint32_t>(slots_.extend(slots));
  }
  used_slots_ += slots;
  for (std::size_t i = 0; i < slots; ++i) slots_[block + i] = {kNoToken, kNoState};
  return block;
}

void EdgePool::deallocate(std::uint32_t block, std::uint32_t block_class) {
  used_slots_ -= std::size_t{1} << (block_class - 1);
  slots_[block] = {kNoToken, free_[block_class]};
  free_[block_class] = block;
}

std::uint32_t EdgePool::rival_bound(const EdgeList& list) const {
  return is_hashed(list) ? header(list).target : kNoState;
}

void EdgePool::set_rival_bound(EdgeList& list, std::uint32_t count) {
  if (is_hashed(list)) header(list).target = count;
}

void EdgePool::note_rival(EdgeList& list, std::uint32_t count) {
  if (is_hashed(list)) header(list).target = std::max(header(list).target, count);
}

std::size_t EdgePool::count_free_slots() const {
  std::size_t slots = 0;
  for (std::uint32_t block_class = 1; block_class < free_.size(); ++block_class) {
    for (std::uint32_t block = free_[block_class]; block != kNoBlock; block = slots_[block].target) {
      slots += std::size_t{1} << (block_class - 1);
    }
  }
  return slots;
}

}  // namespace agentspec
