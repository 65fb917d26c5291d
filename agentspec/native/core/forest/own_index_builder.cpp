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
      request.own.building().begin_sequence();
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
  const auto [prediction, prompt] = request->own.text();
  build(*request, prediction, prompt);
}

// Returns false if the index is not needed any more.
bool OwnIndexBuilder::begin(Request& request) {
  const std::lock_guard lock(mutex_);
  return request.own.begin_build();
}

// Returns false if the index is not needed any more.
bool OwnIndexBuilder::append_pieces(Request& request, std::span<const std::int32_t> tokens) {
  constexpr std::size_t kPieceTokens = 1024;
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(kPieceTokens, tokens.size()));
    request.own.building().append(piece);
    tokens = tokens.subspan(piece.size());
    const std::lock_guard lock(mutex_);
    if (request.is_finished || request.own.is_dropped()) return false;
    budget_.account(request, request.own->memory_bytes() + request.own.text_bytes(), piece.size());
    budget_.balance();
  }
  return true;
}

void OwnIndexBuilder::give_up(Request& request) {
  const std::lock_guard lock(mutex_);
  if (!request.is_finished) budget_.drop_own_index(request);
}

void OwnIndexBuilder::end(Request& request) {
  OwnIndex::Leftovers unwanted;  // freed after the lock
  const std::lock_guard lock(mutex_);
  unwanted = request.own.end_build(!request.is_finished);
  if (request.own.is_ready()) {
    budget_.account_own(request, unwanted.num_pending);
    budget_.balance();
  } else if (!request.is_finished) {
    budget_.drop_own_index(request);
  }
  own_changed_.notify_all();
}

}  // namespace agentspec
