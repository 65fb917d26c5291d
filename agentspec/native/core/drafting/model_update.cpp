#include "core/drafting/model_update.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>

#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr std::uint8_t kSkip = 255;  // a gap of so many places, without a cell behind it
constexpr std::size_t kNumContextPlaces = Evidence::kNumContextCells + Evidence::kNumOwnCells;
constexpr std::size_t kNumSets = Evidence::kNumTreeSets + Evidence::kNumKinds;
static_assert(std::endian::native == std::endian::little, "updates are little-endian");

class Writer {
 public:
  template <std::integral T>
  void put(T value) {
    const auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  /// Places as gaps, then the cells: each compresses best among its like.
  template <class Cell>
  void put(const std::vector<ModelUpdate::Placed<Cell>>& cells) {
    put(static_cast<std::uint16_t>(cells.size()));
    std::size_t next = 0;
    for (const auto& [place, cell] : cells) {
      for (; place - next >= kSkip; next += kSkip) put(kSkip);
      put(static_cast<std::uint8_t>(place - next));
      next = place + std::size_t{1};
    }
    for (const auto& placed : cells) put(std::bit_cast<std::uint16_t>(placed.cell));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <std::integral T>
  T get() {
    if (rest_.size() < sizeof(T)) throw ConfigError("the update of a model ends too early");
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  template <class Cell>
  std::vector<ModelUpdate::Placed<Cell>> cells(std::size_t num_places) {
    std::vector<ModelUpdate::Placed<Cell>> cells(std::min<std::size_t>(get<std::uint16_t>(), rest_.size()));
    std::size_t next = 0;
    for (auto& placed : cells) {
      std::uint8_t gap = 0;
      for (gap = get<std::uint8_t>(); gap == kSkip; gap = get<std::uint8_t>()) next += kSkip;
      next += gap;
      if (next >= num_places) throw ConfigError("the update of a model names a cell that no model has");
      placed.place = static_cast<std::uint16_t>(next++);
    }
    for (auto& placed : cells) placed.cell = std::bit_cast<Cell>(get<std::uint16_t>());
    return cells;
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> ModelUpdate::encoded() const {
  Writer writer;
  writer.put(num_outcomes);
  writer.put(contexts);
  writer.put(hashed);
  writer.put(static_cast<std::uint8_t>(weights.size()));
  for (const Weights& one : weights) {
    writer.put(one.set);
    writer.put(one.num_learned);
    for (const std::int16_t weight : one.of) writer.put(weight);
  }
  return writer.take();
}

ModelUpdate ModelUpdate::decoded(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  ModelUpdate update;
  update.num_outcomes = reader.get<std::uint32_t>();
  update.contexts = reader.cells<ContextCell>(kNumContextPlaces);
  update.hashed = reader.cells<HashedCell>(Evidence::kNumHashedCells);
  update.weights.resize(reader.get<std::uint8_t>());
  for (Weights& one : update.weights) {
    one.set = reader.get<std::uint8_t>();
    if (one.set >= kNumSets) throw ConfigError("the update of a model names weights that no model has");
    one.num_learned = reader.get<std::uint32_t>();
    for (std::int16_t& weight : one.of) weight = reader.get<std::int16_t>();
  }
  if (!reader.is_empty()) throw ConfigError("the update of a model goes on behind its end");
  return update;
}

}  // namespace agentspec
