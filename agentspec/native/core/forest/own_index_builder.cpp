#include "core/forest/own_index_builder.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace agentspec {
namespace {

/// Memory of finished requests. Less waits until the thread has to build an index anyway.
constexpr std::size_t kDiscardBytes = std::size_t{1} << 20;

}  // namespace

void OwnIndexBuilder::build(Request& request, std::span<const std::int32_t> prediction,
                            std::span<const std::int32_t> prompt) {
  try {
    if (append_pieces(request, prediction)) {
      request.own->begin_sequence();
      append_pieces(request, prompt);
    }
  } catch (...) {
    give_up(request);
  }
  end(request);
}

void OwnIndexBuilder::build_in_background(const std::shared_ptr<Request>& request) {
  try {
    thread_.submit([this, waiting = std::weak_ptr(request)] { build_queued(waiting.lock()); });
  } catch (const std::bad_alloc&) {
    give_up(*request);
    end(*request);
  }
}

void OwnIndexBuilder::discard(std::shared_ptr<Request> request, std::size_t bytes) noexcept {
  const bool is_worth_waking = (discarded_bytes_ += bytes) >= kDiscardBytes;
  if (is_worth_waking) discarded_bytes_ = 0;
  try {
    std::function<void()> free_it = [held = std::move(request)]() mutable { held.reset(); };
    is_worth_waking ? thread_.submit(std::move(free_it)) : thread_.submit_idly(std::move(free_it));
  } catch (const std::bad_alloc&) {  // it is freed here
  }
}

// nullptr: the request is finished.
void OwnIndexBuilder::build_queued(const std::shared_ptr<Request>& request) {
  if (request == nullptr) return;
  if (!begin(*request)) return end(*request);
  const std::span<const std::int32_t> text = request->text.span();
  build(*request, text.first(request->num_predicted), text.subspan(request->num_predicted));
}

// Returns false if the index is not needed any more.
bool OwnIndexBuilder::begin(Request& request) {
  const std::lock_guard lock(mutex_);
  if (request.own_state != OwnIndex::kQueued) return false;
  request.own_state = OwnIndex::kBuilding;
  return true;
}

// Returns false if the index is not needed any more.
bool OwnIndexBuilder::append_pieces(Request& request, std::span<const std::int32_t> tokens) {
  constexpr std::size_t kPieceTokens = 1024;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(kPieceTokens, tokens.size()));
    request.own->append(piece);
    tokens = tokens.subspan(piece.size());
    const std::lock_guard lock(mutex_);
    if (request.is_finished || request.own_state == OwnIndex::kDropped) return false;
    budget_.account(request, request.own->memory_bytes() + request.text.memory_bytes(), piece.size());
    budget_.balance();
  }
  return true;
}

void OwnIndexBuilder::give_up(Request& request) {
  const std::lock_guard lock(mutex_);
  if (!request.is_finished) budget_.drop_own_index(request);
}

void OwnIndexBuilder::end(Request& request) {
  std::unique_ptr<RequestIndex> unwanted;  // these are freed after the lock
  PodArray<std::int32_t> text;
  const std::lock_guard lock(mutex_);
  text = std::move(request.text);
  const std::vector<std::int32_t> pending = std::move(request.pending);
  if (request.is_finished || request.own_state == OwnIndex::kDropped) {
    unwanted = std::move(request.own);
    if (!request.is_finished) budget_.drop_own_index(request);
  } else {
    request.own_state = OwnIndex::kReady;
    request.append_to_own(pending);
    budget_.account_own(request, pending.size());
    budget_.balance();
  }
  own_changed_.notify_all();
}

}  // namespace agentspec
