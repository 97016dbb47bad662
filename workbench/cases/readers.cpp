#include "workbench/cases/readers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "file formats and kernels here are little-endian");

// The safetensors format caps its header at 100 MB; real ones stay under 1 MB even for models of
// hundreds of layers. The smaller cap bounds what a hostile file can make us parse.
constexpr std::uint64_t kMaxSafetensorsHeader = 16u << 20;
constexpr std::uint64_t kMaxNpyHeader = 64u << 10;
constexpr std::size_t kMaxRank = 8;
// Names come from the file and go to the terminal: shortened, control characters replaced.
constexpr std::size_t kMaxNameShown = 60;

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...)};
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxNameShown))
    out += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
  if (text.size() > kMaxNameShown) out += "...";
  return out;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<std::uint64_t> checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Bytes of a tensor, or nothing when they do not fit 63 bits.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::uint64_t size) {
  std::uint64_t total = size;
  for (const std::int64_t n : shape) {
    const auto product = checked_product(total, static_cast<std::uint64_t>(n));
    if (!product || *product > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
    total = *product;
  }
  return total;
}

std::optional<DType> safetensors_dtype(std::string_view name) {
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  if (name == "F8_E4M3") return DType::e4m3;
  return std::nullopt;
}

// nlohmann::json keeps the last of two members with one name; a file with two is damaged or meant
// to deceive. Also bounds the nesting, so that parsing cannot exhaust the stack.
class HeaderGuard {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth > 4) too_deep = true;
      if (event == json::parse_event_t::object_start) keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      if (!keys_.empty()) keys_.pop_back();
    } else if (event == json::parse_event_t::key && !keys_.empty()) {
      if (!keys_.back().insert(parsed.get<std::string>()).second && duplicate.empty())
        duplicate = parsed.get<std::string>();
    }
    return !too_deep;
  }
  std::string duplicate;
  bool too_deep = false;

 private:
  std::vector<std::set<std::string>> keys_;
};

Result<std::uint64_t> offset_of(const json& value, const std::string& name) {
  if (!value.is_number_unsigned())
    return invalid("tensor '{}': data_offsets must be two non-negative integers", name);
  return value.get<std::uint64_t>();
}

Result<FileTensor> parse_entry(const std::string& raw_name, const json& entry,
                               std::uint64_t data_bytes, std::string* other_dtype) {
  const std::string name = printable(raw_name);
  if (!entry.is_object()) return invalid("tensor '{}': its entry is not an object", name);
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) return invalid("tensor '{}': '{}' is missing", name, key);
  if (!entry["dtype"].is_string()) return invalid("tensor '{}': dtype is not a string", name);
  const json& shape = entry["shape"];
  if (!shape.is_array() || shape.size() > kMaxRank)
    return invalid("tensor '{}': shape must be an array of at most {} sizes", name, kMaxRank);
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    return invalid("tensor '{}': data_offsets must be two non-negative integers", name);

  FileTensor tensor;
  tensor.name = raw_name;
  for (const json& n : shape) {
    if (!n.is_number_unsigned() ||
        n.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      return invalid("tensor '{}': shape has a size that is not a non-negative integer", name);
    tensor.shape.push_back(n.get<std::int64_t>());
  }
  const auto begin = offset_of(offsets[0], name);
  if (!begin.ok()) return begin.status();
  const auto end = offset_of(offsets[1], name);
  if (!end.ok()) return end.status();
  if (*begin > *end || *end > data_bytes)
    return invalid("tensor '{}': data_offsets [{}, {}] lie outside the file's {} bytes of data",
                   name, *begin, *end, data_bytes);
  tensor.offset = *begin;
  tensor.bytes = *end - *begin;

  const std::string dtype_name = entry["dtype"].get<std::string>();
  const auto dtype = safetensors_dtype(dtype_name);
  if (!dtype) {
    *other_dtype = printable(dtype_name);
    return tensor;
  }
  tensor.dtype = *dtype;
  const auto expected = bytes_of(tensor.shape, size_of(*dtype));
  if (!expected)
    return invalid("tensor '{}': shape [{}] overflows", name, fmt::join(tensor.shape, ", "));
  if (*expected != tensor.bytes)
    return invalid("tensor '{}': shape [{}] {} needs {} bytes, data_offsets hold {}", name,
                   fmt::join(tensor.shape, ", "), dtype_name, *expected, tensor.bytes);
  return tensor;
}

// A cursor over the Python literal of an .npy header: {'descr': '<f4', 'fortran_order': False,
// 'shape': (1, 2), }.
class NpyHeader {
 public:
  explicit NpyHeader(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_blanks();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  bool at_end() {
    skip_blanks();
    return position_ == text_.size();
  }
  std::optional<std::string> string() {
    skip_blanks();
    if (position_ >= text_.size()) return std::nullopt;
    const char quote = text_[position_];
    if (quote != '\'' && quote != '"') return std::nullopt;
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return value;
  }
  std::optional<bool> boolean() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += std::string_view(word).size();
        return value;
      }
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> integer() {
    skip_blanks();
    std::int64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    position_ += static_cast<std::size_t>(end - begin);
    return value;
  }
  std::optional<std::vector<std::int64_t>> tuple() {
    std::vector<std::int64_t> values;
    if (!take('(')) return std::nullopt;
    while (!take(')')) {
      const auto value = integer();
      if (!value || values.size() == kMaxRank) return std::nullopt;
      values.push_back(*value);
      if (!take(',')) {
        if (!take(')')) return std::nullopt;
        break;
      }
    }
    return values;
  }

 private:
  void skip_blanks() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n'))
      ++position_;
  }
  std::string_view text_;
  std::size_t position_ = 0;
};

// An open file whose size was read once; shorter reads than asked are errors.
class File {
 public:
  static Result<File> open(const fs::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return invalid("cannot open {}: {}", path.string(), std::strerror(errno));
    File file(descriptor, path);
    struct stat facts {};
    if (::fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode))
      return invalid("{} is not a regular file", path.string());
    file.bytes_ = static_cast<std::uint64_t>(facts.st_size);
    return file;
  }
  File(File&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        bytes_(other.bytes_),
        path_(std::move(other.path_)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  std::uint64_t bytes() const { return bytes_; }
  Result<std::vector<std::byte>> read(std::uint64_t offset, std::uint64_t bytes) const {
    std::vector<std::byte> data(bytes);
    std::uint64_t done = 0;
    while (done < bytes) {
      const ssize_t n =
          ::pread(descriptor_, data.data() + done, bytes - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        return Status(StatusCode::internal,
                      fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno)));
      if (n == 0) return invalid("{} became shorter while it was read", path_.string());
      done += static_cast<std::uint64_t>(n);
    }
    return data;
  }

 private:
  File(int descriptor, fs::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_;
  std::uint64_t bytes_ = 0;
  fs::path path_;
};

Status in_file(const fs::path& path, const Status& status) {
  return {status.code(), fmt::format("{}: {}", path.string(), status.message())};
}

// Accepts rank 3 as a batch of one.
Status check_rank(FileTensor* tensor, std::string_view role) {
  if (tensor->shape.size() == 3) tensor->shape.insert(tensor->shape.begin(), 1);
  if (tensor->shape.size() == 4) return {};
  return invalid(
      "{} has rank {} (shape [{}]): attention takes [B, H, S, D], or [H, S, D] for a "
      "batch of one",
      role, tensor->shape.size(), fmt::join(tensor->shape, ", "));
}

Status check_limit(std::uint64_t bytes, std::uint64_t limit, std::string_view inputs) {
  if (bytes <= limit) return {};
  return invalid(
      "{}: q, k and v take {} bytes, more than the {} this command reads; capture a "
      "smaller batch",
      inputs, bytes, limit);
}

// The one tensor called `role` or "….role"; an error lists what there is.
Result<const FileTensor*> find_role(const SafetensorsIndex& index, std::string_view role) {
  auto matches = [&](const std::string& name) {
    return name == role || (name.size() > role.size() && name.ends_with(role) &&
                            name[name.size() - role.size() - 1] == '.');
  };
  const FileTensor* found = nullptr;
  for (const FileTensor& tensor : index.tensors) {
    if (!matches(tensor.name)) continue;
    if (found != nullptr)
      return invalid("both '{}' and '{}' are a '{}': keep one layer in a file",
                     printable(found->name), printable(tensor.name), role);
    found = &tensor;
  }
  if (found != nullptr) return found;
  for (const auto& other : index.others)
    if (matches(other.name))
      return invalid("tensor '{}' has dtype {}: possible are F32, F16, BF16 and F8_E4M3",
                     printable(other.name), other.dtype);
  std::vector<std::string> names;
  for (const FileTensor& tensor : index.tensors) {
    if (names.size() == 6) {
      names.push_back("...");
      break;
    }
    names.push_back(printable(tensor.name));
  }
  return invalid(
      "no tensor is called '{0}' or ends in '.{0}'; the file has: {1}", role,
      names.empty() ? "none of a usable dtype" : fmt::format("{}", fmt::join(names, ", ")));
}

Result<Captured> read_captured_safetensors(const fs::path& path, std::uint64_t limit) {
  auto file = File::open(path);
  if (!file.ok()) return file.status();
  auto head = file->read(0, std::min<std::uint64_t>(file->bytes(), 8 + kMaxSafetensorsHeader));
  if (!head.ok()) return head.status();
  const auto index = read_safetensors(*head, file->bytes());
  if (!index.ok()) return in_file(path, index.status());

  Captured captured;
  std::uint64_t total = 0;
  for (const auto& [role, item] :
       {std::pair{"q", &captured.q}, std::pair{"k", &captured.k}, std::pair{"v", &captured.v}}) {
    const auto tensor = find_role(*index, role);
    if (!tensor.ok()) return in_file(path, tensor.status());
    item->tensor = **tensor;
    item->file = path;
    if (Status s = check_rank(&item->tensor, role); !s.ok()) return in_file(path, s);
    total += item->tensor.bytes;
  }
  if (Status s = check_limit(total, limit, path.string()); !s.ok()) return s;
  for (Captured::Item* item : {&captured.q, &captured.k, &captured.v}) {
    auto data = file->read(item->tensor.offset, item->tensor.bytes);
    if (!data.ok()) return data.status();
    item->data = std::move(*data);
  }
  for (const auto& [role, scales] :
       {std::pair{"q_scale", &captured.q_scale}, std::pair{"k_scale", &captured.k_scale},
        std::pair{"v_scale", &captured.v_scale}}) {
    const auto tensor = find_role(*index, role);
    if (!tensor.ok()) continue;  // optional
    if ((*tensor)->dtype != DType::f32 || (*tensor)->bytes > (1u << 20))
      return invalid("{}: {} must be F32, one value or one per (batch, head)", path.string(), role);
    auto data = file->read((*tensor)->offset, (*tensor)->bytes);
    if (!data.ok()) return data.status();
    scales->resize(data->size() / sizeof(float));
    if (!data->empty()) std::memcpy(scales->data(), data->data(), data->size());
  }
  return captured;
}

Result<Captured> read_captured_npy(const std::array<fs::path, 3>& paths, std::uint64_t limit) {
  Captured captured;
  std::uint64_t total = 0;
  std::size_t n = 0;
  for (const auto& [role, item] :
       {std::pair{"q", &captured.q}, std::pair{"k", &captured.k}, std::pair{"v", &captured.v}}) {
    const fs::path& path = paths[n++];
    auto file = File::open(path);
    if (!file.ok()) return file.status();
    auto head = file->read(0, std::min<std::uint64_t>(file->bytes(), 12 + kMaxNpyHeader));
    if (!head.ok()) return head.status();
    auto tensor = read_npy(*head, file->bytes());
    if (!tensor.ok()) return in_file(path, tensor.status());
    item->tensor = std::move(*tensor);
    item->tensor.name = role;
    item->file = path;
    if (Status s = check_rank(&item->tensor, role); !s.ok()) return in_file(path, s);
    total += item->tensor.bytes;
    if (Status s = check_limit(total, limit, path.string()); !s.ok()) return s;
    auto data = file->read(item->tensor.offset, item->tensor.bytes);
    if (!data.ok()) return data.status();
    item->data = std::move(*data);
  }
  return captured;
}

}  // namespace

Result<SafetensorsIndex> read_safetensors(std::span<const std::byte> head,
                                          std::uint64_t file_bytes) {
  std::uint64_t header_bytes = 0;
  if (head.size() < sizeof header_bytes)
    return invalid("truncated: {} bytes, a .safetensors file begins with 8 bytes of length",
                   head.size());
  std::memcpy(&header_bytes, head.data(), sizeof header_bytes);
  if (header_bytes > file_bytes - sizeof header_bytes)
    return invalid(
        "the header claims {} bytes, but only {} follow: truncated, or not a "
        ".safetensors file",
        header_bytes, file_bytes - sizeof header_bytes);
  if (header_bytes > kMaxSafetensorsHeader || header_bytes > head.size() - sizeof header_bytes)
    return invalid("the header claims {} bytes; at most {} are read", header_bytes,
                   kMaxSafetensorsHeader);
  const std::string_view text = as_text(head.subspan(sizeof header_bytes, header_bytes));
  const std::uint64_t data_begin = sizeof header_bytes + header_bytes;
  const std::uint64_t data_bytes = file_bytes - data_begin;

  HeaderGuard guard;
  const json header = json::parse(text, std::ref(guard), /*allow_exceptions=*/false);
  if (guard.too_deep) return invalid("the header is nested too deeply for .safetensors");
  if (header.is_discarded() || !header.is_object())
    return invalid("the header is not a JSON object: damaged, or not a .safetensors file");
  if (!guard.duplicate.empty())
    return invalid("the name '{}' occurs twice in the header", printable(guard.duplicate));

  SafetensorsIndex index;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    std::string other_dtype;
    auto tensor = parse_entry(name, entry, data_bytes, &other_dtype);
    if (!tensor.ok()) return tensor.status();
    if (tensor->bytes > 0) ranges.emplace_back(tensor->offset, tensor->offset + tensor->bytes);
    tensor->offset += data_begin;
    if (other_dtype.empty())
      index.tensors.push_back(std::move(*tensor));
    else
      index.others.push_back({name, other_dtype});
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second)
      return invalid("two tensors share the bytes from {} on", ranges[i].first);
  // The format lets no byte belong to none: such a header lies, or two files became one.
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > covered)
      return invalid("bytes {} to {} of the data belong to no tensor: damaged", covered, begin);
    covered = end;
  }
  if (covered != data_bytes)
    return invalid("the tensors take {} bytes of data, the file has {}: damaged", covered,
                   data_bytes);
  return index;
}

Result<FileTensor> read_npy(std::span<const std::byte> head, std::uint64_t file_bytes) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!as_text(head).starts_with(kMagic) || head.size() < 10)
    return invalid("not an .npy file: it does not begin with \\x93NUMPY");
  const int major = std::to_integer<int>(head[6]);
  if (major < 1 || major > 3) return invalid(".npy format {}.x: possible are 1 to 3", major);
  // The length field has 2 bytes in format 1, 4 in 2 and 3.
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t text_begin = 8 + length_bytes;
  if (head.size() < text_begin) return invalid("truncated inside the .npy header");
  std::uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, head.data() + 8, length_bytes);
  if (header_bytes > file_bytes - text_begin)
    return invalid("the header claims {} bytes, but only {} follow: truncated", header_bytes,
                   file_bytes - text_begin);
  if (header_bytes > kMaxNpyHeader || header_bytes > head.size() - text_begin)
    return invalid("the header claims {} bytes; at most {} are read", header_bytes, kMaxNpyHeader);

  NpyHeader header(as_text(head.subspan(text_begin, header_bytes)));
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::int64_t>> shape;
  bool well_formed = header.take('{');
  while (well_formed && !header.take('}')) {
    const auto key = header.string();
    well_formed = key && header.take(':');
    if (!well_formed) break;
    if (*key == "descr" && !descr) {
      descr = header.string();
      if (!descr) return invalid("structured .npy types hold no tensor: save a plain array");
    } else if (*key == "fortran_order" && !fortran) {
      well_formed = (fortran = header.boolean()).has_value();
    } else if (*key == "shape" && !shape) {
      well_formed = (shape = header.tuple()).has_value();
    } else {
      return invalid("the .npy header has an unknown or repeated key '{}'", printable(*key));
    }
    if (well_formed && !header.take(',')) {
      well_formed = header.take('}');
      break;
    }
  }
  if (!well_formed || !header.at_end() || !descr || !fortran || !shape)
    return invalid(
        "the .npy header is damaged: expected descr, fortran_order and a shape of at "
        "most {} sizes",
        kMaxRank);

  FileTensor tensor;
  if (*descr == "<f4") {
    tensor.dtype = DType::f32;
  } else if (*descr == "<f2") {
    tensor.dtype = DType::f16;
  } else {
    return invalid(
        "dtype '{}': possible are '<f4' and '<f2'; NumPy has no name for bfloat16 and "
        "float8, save those as .safetensors",
        printable(*descr));
  }
  if (*fortran)
    return invalid("the array is in Fortran order: save numpy.ascontiguousarray(array)");
  tensor.shape = std::move(*shape);
  tensor.offset = text_begin + header_bytes;
  const auto bytes = bytes_of(tensor.shape, size_of(tensor.dtype));
  if (!bytes) return invalid("shape ({}) overflows", fmt::join(tensor.shape, ", "));
  tensor.bytes = *bytes;
  if (tensor.bytes != file_bytes - tensor.offset)
    return invalid("shape ({}) {} needs {} bytes of data, the file has {}",
                   fmt::join(tensor.shape, ", "), *descr, tensor.bytes, file_bytes - tensor.offset);
  return tensor;
}

Result<Captured> read_captured(std::string_view inputs, std::uint64_t limit) {
  const fs::path path{std::string(inputs)};
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    return read_captured_npy({path / "q.npy", path / "k.npy", path / "v.npy"}, limit);
  if (inputs.find(',') != std::string_view::npos && !fs::exists(path, ignored)) {
    std::array<fs::path, 3> paths;
    std::size_t count = 0;
    for (std::size_t begin = 0; begin <= inputs.size(); ++count) {
      const std::size_t end = std::min(inputs.find(',', begin), inputs.size());
      if (count < 3) paths[count] = std::string(inputs.substr(begin, end - begin));
      begin = end + 1;
    }
    if (count != 3)
      return invalid("--inputs names {} files: give q.npy,k.npy,v.npy in that order", count);
    return read_captured_npy(paths, limit);
  }
  if (path.extension() == ".safetensors") return read_captured_safetensors(path, limit);
  if (!fs::exists(path, ignored)) return invalid("--inputs {}: no such file", path.string());
  return invalid(
      "--inputs {}: possible are one .safetensors file, q.npy,k.npy,v.npy, or a "
      "directory with those",
      path.string());
}

}  // namespace greenfast::workbench
