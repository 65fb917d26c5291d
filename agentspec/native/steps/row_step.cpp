#include "steps/row_step.hpp"

#include <algorithm>
#include <chrono>
#include <exception>

#include "core/error.hpp"

namespace agentspec {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The chance of token j if those before it are accepted. Tokens behind a path are dictated.
float chance_at(std::span<const float> path, std::size_t j) {
  if (j >= path.size()) return 1.0F;
  if (j == 0) return path[0];
  return path[j - 1] > 0 ? std::min(1.0F, path[j] / path[j - 1]) : 0.0F;
}

}  // namespace

RowStep::RowStep(LiveRows& rows, std::vector<Row> planned, const StepBuffers& buffers, double min_prob,
                 std::size_t num_model)
    : rows_(rows),
      planned_(std::move(planned)),
      buffers_(buffers),
      min_prob_(min_prob),
      num_model_(num_model),
      tokens_(planned_.size() * buffers.sampled_width),
      batch_(planned_.size()) {
  if (buffers.sampled_width == 0) throw ConfigError("a row has room for one sampled token at least, not 0");
  if (num_model > buffers.draft_width)
    throw ConfigError("a row of " + std::to_string(buffers.draft_width) + " slots can't hold " +
                      std::to_string(num_model) + " draft tokens of the model");
  made_.rows.resize(planned_.size());
}

void RowStep::run() noexcept {
  begin_s_ = now_s();
  try {
    read_samples();
    rows_.expect(batch_.size());
    const auto most = static_cast<std::uint32_t>(buffers_.draft_width);
    made_ = rows_.step({batch_}, {most, min_prob_, num_model_}, begin_s_);
  } catch (const std::exception& error) {
    error_ = error.what();
    for (const Row& row : planned_) rows_.lose(row.name);  // what they sampled is not known to the core
  }
  write_drafts();
  took_s_ = now_s() - begin_s_;
  is_done_.store(true, std::memory_order_release);
}

void RowStep::read_samples() {
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const std::size_t begin = i * buffers_.sampled_width;
    const auto num_sampled = static_cast<std::size_t>(std::max(0, buffers_.num_sampled[i]));
    if (num_sampled > buffers_.sampled_width)
      throw ConfigError("a row of " + std::to_string(buffers_.sampled_width) + " places can't hold " +
                        std::to_string(num_sampled) + " tokens");
    const auto* sampled = buffers_.sampled + begin;
    std::transform(sampled, sampled + num_sampled, tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                   [](std::int64_t token) { return static_cast<std::int32_t>(token); });
    const Row& row = planned_[i];
    batch_[i] = {row.name, {tokens_.data() + begin, num_sampled}, row.num_slots, row.least, row.dictated};
  }
}

void RowStep::write_drafts() {
  const std::size_t width = buffers_.draft_width;
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const auto draft = made_.of(i);
    const auto sampled = batch_[i].sampled;
    auto* tokens = std::copy(draft.begin(), draft.end(), buffers_.drafts + i * width);
    std::fill(tokens, buffers_.drafts + (i + 1) * width, sampled.empty() ? 0 : sampled.back());
    if (num_model_ > 0 && draft.empty()) buffers_.drafts[i * width] = kModelDrafts;
    if (buffers_.chances == nullptr) continue;
    const auto path = std::span(made_.chances).subspan(made_.rows[i].begin, made_.rows[i].size);
    float* chances = buffers_.chances + i * width;
    for (std::size_t j = 0; j < width; ++j) chances[j] = j < draft.size() ? chance_at(path, j) : 0.0F;
  }
}

void RowStep::count_saving(const StepSaving& saving) {
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const auto& row = made_.rows[i];
    if (row.was_decoding && row.num_gained > 0)
      rows_.count_row_saving(planned_[i].name, row.num_gained, saving);
  }
}

void run_row_step(void* step) noexcept { static_cast<RowStep*>(step)->run(); }

}  // namespace agentspec
