// The present cost of verifying one more token, learned from the decode steps.
#pragma once

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
/// The seconds of a step change with the draft tokens, the requests and the prompt tokens. The cost is fitted
/// by least squares over the changes between steps, fading over kWindow steps. It uses changes, not levels:
/// slow influences (the context, the text, the machine) affect both seconds and drafts. With little evidence,
/// at the start or if the number of draft tokens hardly changes, the price is drawn to kFirstPrice. At that
/// price drafts are made, which gives evidence. The same steps give the same price.
///
/// Constant time per step; stores only the last step. Not thread-safe.
class StepCost {
 public:
  static constexpr double kFirstPrice = 0.2;
  static constexpr int kWindow = 256;  // steps: the cost of a draft token fades over a few of these windows

  /// The cost of one more draft token, in accepted tokens: between 0 and 1.
  double price() const;
  /// Seconds per further draft token; none while the steps give too little evidence.
  std::optional<double> draft_token_s() const;
  /// Takes one decode step of `seconds`, ignored if implausible, in which `num_requests` requests decoded. A
  /// step without any is ignored. It verified `num_drafted` draft tokens, and added `num_tokens` tokens to
  /// the outputs, at least one per request. `num_prompt_tokens` were processed in the same pass.
  void observe(double seconds, std::uint32_t num_requests, std::uint32_t num_drafted,
               std::uint32_t num_tokens, std::uint32_t num_prompt_tokens);

 private:
  /// What a step's seconds depend on, or the change of it from one step to the next. Whole numbers.
  struct Work {
    double drafted = 0;  // tokens
    double requests = 0;
    double prompt = 0;  // tokens
  };
  /// Means of the products of two changes: d of draft tokens, r of requests, p of prompt tokens, s of
  /// seconds.
  struct Products {
    double dd = 0, dr = 0, dp = 0, ds = 0, rr = 0, rp = 0, rs = 0, pp = 0, ps = 0;
  };
  struct Slopes {
    double per_draft = 0;  // seconds per draft token
    double per_request = 0;
    double per_prompt = 0;  // seconds per prompt token
  };

  double seconds_per_token() const;
  double within_reason(double change, const Work& work, double weight);
  void fade(double weight, const Work& work, double s);
  void fit();

  int num_steps_ = 0;  // up to kWindow
  Work last_;
  double last_s_ = 0;
  double mean_s_ = 0;  // per step, as the next two
  double mean_tokens_ = 0;
  double mean_prompt_ = 0;
  Products products_;
  Slopes slopes_;
  double evidence_ = 0;   // share of the steps in the cost; the rest is the first price
  double deviation_ = 0;  // mean deviation of a change of seconds from the fit
};

}  // namespace agentspec
