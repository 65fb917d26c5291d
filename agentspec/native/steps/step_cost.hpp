// The present cost of verifying one more token, learned from the decode steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace agentspec {

/// A step verifies tokens (each request's last one and its draft), takes seconds and yields the accepted
/// tokens. One more draft token is worth its time if its chance of acceptance is at least
///
///     price = seconds per further draft token * tokens per second
///
/// in accepted tokens (docs/drafting.md). Has no clock, no engine and no request.
///
/// The seconds of a step change with the draft tokens, the requests and the prompt tokens. With `has_stair`
/// the first draft token of a step has a cost of its own: on a CPU another kernel multiplies two rows than
/// one. The cost is fitted by least squares over the changes between steps, fading over kWindow steps. It
/// uses changes, not levels: slow influences (the context, the text, the machine) affect both seconds and
/// drafts. A step's noise is taken to be proportional to its seconds: one with a long prompt says little
/// about draft tokens. There is little evidence at the start, and if the number of draft tokens hardly
/// changes. Then the price is drawn to kFirstPrice, and the stair to nothing. At that price drafts are made,
/// which gives evidence. The same steps give the same price.
///
/// Constant time per step; stores the first few steps and the last one. Not thread-safe.
class StepCost {
 public:
  static constexpr double kFirstPrice = 0.2;
  static constexpr int kWindow = 256;  // steps: the cost of a draft token fades over a few of these windows

  /// `has_stair`: the first draft token of a step without prompts may cost more than the others. Otherwise
  /// the price is the mean of all.
  explicit StepCost(bool has_stair = false) : has_stair_(has_stair) {}

  /// The cost of one more draft token, in accepted tokens: between 0 and 1.
  double price() const;
  /// What the first draft token of a step costs beyond the price, in accepted tokens: at least 0.
  double stair() const;
  /// Seconds of an output token of late, without those of prompts; 0 before the first step.
  double token_s() const;
  /// Seconds that `num_drafted` draft tokens of a step take; none while the steps give too little evidence.
  std::optional<double> drafts_s(std::uint32_t num_drafted) const;
  /// Takes one decode step of `seconds`, ignored if implausible, in which `num_requests` requests decoded. A
  /// step without any is ignored. It verified `num_drafted` draft tokens, and added `num_tokens` tokens to
  /// the outputs, at least one per request. `num_prompt_tokens` were processed in the same pass.
  void observe(double seconds, std::uint32_t num_requests, std::uint32_t num_drafted,
               std::uint32_t num_tokens, std::uint32_t num_prompt_tokens);

 private:
  static constexpr std::size_t kFew = 8;  // early steps: deviations are not known yet

  /// What a step's seconds depend on, in the order in which the least squares are solved.
  enum Cause : std::size_t { kPrompt, kRequests, kStair, kDrafted, kNumCauses };
  /// A value for each cause. Of a step, or of the change from one step to the next, in whole numbers.
  using Causes = std::array<double, kNumCauses>;

  struct Step {
    double seconds = 0;
    Causes work{};
    double num_tokens = 0;
  };

  struct Fit {
    Causes slopes{};
    double evidence = 0;
  };

  bool is_typical(const Step& step) const;
  void take(const Step& step, bool is_early);
  double within_reason(double change, double expected, double weight, double trust, bool is_early);
  void fade(double weight, const Causes& change, double s, double trust);
  void fit();
  Fit solved(const Causes& weights, double first_s) const;

  bool has_stair_;
  std::array<Step, kFew> early_{};
  std::size_t num_early_ = 0;
  int num_steps_ = 0;  // up to kWindow
  Causes last_{};
  double last_s_ = 0;
  double mean_s_ = 0;  // per step, as the next two
  double mean_tokens_ = 0;
  double mean_prompt_ = 0;
  std::array<Causes, kNumCauses> products_{};  // means of the products of two changes
  Causes with_s_{};                            // of a change and that of the seconds
  Causes slopes_{};                            // seconds per unit
  double evidence_ = 0;                        // share of the steps in the cost; the rest is the first price
  double deviation_ = 0;                       // mean deviation of a change of seconds from the fit
};

}  // namespace agentspec
