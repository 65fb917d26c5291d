#include "core/drafting/model_update.hpp"

#include <algorithm>

#include "core/bytes.hpp"
#include "core/error.hpp"

namespace agentspec {
namespace {

constexpr std::uint8_t kSkip = 255;  // a gap of so many places, without a cell behind it
constexpr std::size_t kNumContextPlaces = Evidence::kNumContextCells + Evidence::kNumOwnCells;
constexpr std::size_t kNumSets = Evidence::kNumTreeSets + Evidence::kNumKinds;

/// Places as gaps, then the cells: each compresses best among its like.
template <class Cell>
void put(ByteWriter& writer, const std::vector<ModelUpdate::Placed<Cell>>& cells) {
  writer.put(static_cast<std::uint16_t>(cells.size()));
  std::size_t next = 0;
  for (const auto& [place, cell] : cells) {
    for (; place - next >= kSkip; next += kSkip) writer.put(kSkip);
    writer.put(static_cast<std::uint8_t>(place - next));
    next = place + std::size_t{1};
  }
  for (const auto& placed : cells) writer.put(placed.cell.encoded());
}

template <class Cell>
std::vector<ModelUpdate::Placed<Cell>> get_cells(ByteReader& reader, std::size_t num_places) {
  const std::size_t num_cells = reader.get<std::uint16_t>();
  std::vector<ModelUpdate::Placed<Cell>> cells(std::min(num_cells, reader.num_left()));
  std::size_t next = 0;
  for (auto& placed : cells) {
    std::uint8_t gap = 0;
    for (gap = reader.get<std::uint8_t>(); gap == kSkip; gap = reader.get<std::uint8_t>()) next += kSkip;
    next += gap;
    if (next >= num_places) throw ConfigError("the update of a model names a cell that no model has");
    placed.place = static_cast<std::uint16_t>(next++);
  }
  for (auto& placed : cells) placed.cell = Cell::decoded(reader.get<std::uint16_t>());
  return cells;
}

}  // namespace

std::vector<std::byte> ModelUpdate::encoded() const {
  ByteWriter writer;
  writer.put(num_outcomes);
  put(writer, contexts);
  put(writer, hashed);
  writer.put(static_cast<std::uint8_t>(weights.size()));
  for (const Weights& one : weights) {
    writer.put(one.set);
    writer.put(one.num_learned);
    for (const std::int16_t weight : one.of) writer.put(weight);
  }
  return writer.take();
}

ModelUpdate ModelUpdate::decoded(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, "the update of a model");
  ModelUpdate update;
  update.num_outcomes = reader.get<std::uint32_t>();
  update.contexts = get_cells<ContextCell>(reader, kNumContextPlaces);
  update.hashed = get_cells<HashedCell>(reader, Evidence::kNumHashedCells);
  update.weights.resize(reader.get<std::uint8_t>());
  for (Weights& one : update.weights) {
    one.set = reader.get<std::uint8_t>();
    if (one.set >= kNumSets) throw ConfigError("the update of a model names weights that no model has");
    one.num_learned = reader.get<std::uint32_t>();
    for (std::int16_t& weight : one.of) weight = reader.get<std::int16_t>();
  }
  if (reader.num_left() > 0) throw ConfigError("the update of a model goes on behind its end");
  return update;
}

}  // namespace agentspec
