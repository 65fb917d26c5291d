// The draft of one request: from its own index, and from the shared ones that it is linked to.
#pragma once

#include <span>

#include "core/drafting/drafter.hpp"
#include "core/drafting/learned_drafter.hpp"
#include "core/forest/batch.hpp"
#include "core/forest/request.hpp"
#include "core/index/lookahead.hpp"

namespace agentspec {

/// One thread's memory for drafting.
struct alignas(128) DraftScratch {
  Drafter drafter;
  LearnedDrafter learned;
  Lookahead lookahead;
  SourcedDraft draft;
};

/// Brings requests into the caches, level by level.
void prefetch(std::span<Request* const> block);

/// Moves the requests' matches to where their own sequences end in the indices, as far as those learned them.
void begin_matches(Request& request);
/// Matches the requests' contexts in the shared indices, and fetches what a draft from there reads.
/// `is_learned`: the indices have ingested the output, so a request's sequence is the longest possible match.
void follow_links(std::span<Request* const> block, bool is_learned, Lookahead& lookahead);

/// Sets scratch.draft to the paper's draft from the request's own index, matched at `match`; empty without
/// one.
void draft_from_own_index(const Request& request, Cursor match, const DraftOptions& options,
                          DraftScratch& scratch);
/// Improves scratch.draft by the shared indices, after follow_links(). A request with a model is drafted for
/// from all trees together, by its model. `own` is the match in its own index.
void improve_draft(Request& request, Cursor own, const DraftOptions& options, DraftScratch& scratch);
/// Sets scratch.draft to the draft that would follow if the text went on with `tokens`. Changes nothing else:
/// the request's last draft stays the one whose outcome is learned.
void draft_after(const Request& request, std::span<const std::int32_t> tokens, const DraftOptions& options,
                 DraftScratch& scratch);

}  // namespace agentspec
