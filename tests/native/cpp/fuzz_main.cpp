// A main for the fuzz target where there is no libFuzzer:
//   fuzz_forest FILE...                                          runs each of the inputs
//   fuzz_forest --seconds N [--seed S] [--last FILE] [FILE...]   mutates these inputs and makes random ones
// The current input is kept in --last (fuzz_forest.last): after a crash, that file is the input to examine.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Arguments {
  long seconds = 0;
  std::uint64_t seed = 0;
  std::string last = "fuzz_forest.last";
  std::vector<std::string> files;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--seconds") {
      arguments.seconds = std::strtol(value, nullptr, 10);
    } else if (name == "--seed") {
      arguments.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--last") {
      arguments.last = value;
    } else {
      arguments.files.push_back(name);
      continue;
    }
    ++i;
  }
  return arguments;
}

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "there is no file %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run(const Bytes& bytes, const std::string& last) {
  std::ofstream(last, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

/// Random inputs, and mutations of given ones.
class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<Bytes> corpus) : random_(seed), corpus_(std::move(corpus)) {}

  Bytes next() {
    if (corpus_.empty() || below(2) == 0) return noise(below(2000));
    Bytes bytes = corpus_[below(corpus_.size())];
    for (std::size_t n = 1 + below(8); n > 0; --n) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  Bytes noise(std::size_t size) {
    Bytes bytes(size);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    return bytes;
  }

  void mutate(Bytes& bytes) {
    const std::size_t from = below(bytes.size() + 1);
    const std::size_t size = below(std::min<std::size_t>(bytes.size() - from, 16) + 1);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(from);
    const auto last = first + static_cast<std::ptrdiff_t>(size);
    if (const std::size_t kind = below(4); kind == 0) {
      bytes.erase(first, last);
    } else if (kind == 1) {
      for (auto byte = first; byte != last; ++byte) *byte = static_cast<std::uint8_t>(random_());
    } else {
      const Bytes added = kind == 2 ? Bytes(first, last) : noise(1 + below(16));
      bytes.insert(first, added.begin(), added.end());
    }
  }

  std::mt19937_64 random_;
  std::vector<Bytes> corpus_;
};

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  std::vector<Bytes> corpus;
  for (const std::string& file : arguments.files) corpus.push_back(read(file));
  std::size_t num_runs = 0;
  for (; num_runs < corpus.size(); ++num_runs) run(corpus[num_runs], arguments.last);
  Mutator mutator(arguments.seed, corpus);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(arguments.seconds);
  for (; std::chrono::steady_clock::now() < end; ++num_runs) run(mutator.next(), arguments.last);
  std::remove(arguments.last.c_str());
  std::printf("%zu inputs, no finding\n", num_runs);
}
