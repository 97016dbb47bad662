#include "workbench/resources/device_code.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>

#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"

namespace greenfast::workbench {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kFatbinMagic = 0xBA55ED50;
constexpr std::uint16_t kKindPtx = 1, kKindElf = 2;
constexpr std::uint16_t kMachineCuda = 190;
constexpr std::uint32_t kSymbolTable = 2, kRela = 4, kNoBits = 8, kRel = 9;
constexpr std::uint8_t kCudaEntry = 0x10;  // st_other: a kernel
// Attributes of .nv.info: a format byte, an attribute byte, then a 16-bit value or the size of what
// follows.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kMaxThreads = 0x05, kFrameSize = 0x11, kRegisterCount = 0x2f;
// Blocks of compute capability 8.0 and later leave the first KB to the system; from 9.0 on ptxas
// counts it in.
constexpr std::int64_t kReservedShared = 1024;

Status damaged(std::string_view what) {
  return {StatusCode::invalid_argument, fmt::format("damaged: {}", what)};
}

/// The little-endian integer at offset, or nothing when it does not lie inside.
template <class Integer>
std::optional<Integer> at(Bytes bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Integer)) return std::nullopt;
  Integer value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<Bytes> part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, size);
}

/// The text at offset up to its zero byte.
std::optional<std::string_view> text_at(Bytes bytes, std::uint64_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const char* begin = reinterpret_cast<const char*>(bytes.data()) + offset;
  const void* end = std::memchr(begin, 0, bytes.size() - offset);
  if (end == nullptr) return std::nullopt;
  return std::string_view(begin, static_cast<const char*>(end));
}

struct Section {
  std::string_view name;
  std::uint32_t type = 0, link = 0, info = 0;
  std::uint64_t size = 0, entry_size = 0;
  Bytes content;  // empty for a section without bytes in the file
};

struct Elf {
  std::uint16_t machine = 0;
  std::uint8_t abi_version = 0;
  std::uint32_t flags = 0;
  std::vector<Section> sections;

  const Section* find(std::string_view name) const {
    for (const Section& section : sections)
      if (section.name == name) return &section;
    return nullptr;
  }
};

bool is_elf(Bytes file) { return file.size() >= 4 && std::memcmp(file.data(), "\177ELF", 4) == 0; }

Result<Elf> read_elf(Bytes file) {
  constexpr std::uint64_t kHeader = 64, kSectionHeader = 64;
  if (!is_elf(file) || file.size() < kHeader)
    return damaged("not an ELF file, or its header is cut off");
  if (std::to_integer<int>(file[4]) != 2 || std::to_integer<int>(file[5]) != 1)
    return damaged("not a 64-bit little-endian ELF file");
  Elf elf;
  elf.abi_version = std::to_integer<std::uint8_t>(file[8]);
  elf.machine = *at<std::uint16_t>(file, 18);
  elf.flags = *at<std::uint32_t>(file, 48);
  const std::uint64_t table = *at<std::uint64_t>(file, 40);
  const std::uint16_t step = *at<std::uint16_t>(file, 58), count = *at<std::uint16_t>(file, 60),
                      names_index = *at<std::uint16_t>(file, 62);
  if (count == 0) return elf;
  if (step != kSectionHeader || !part(file, table, std::uint64_t{count} * kSectionHeader))
    return damaged("the ELF section table lies outside of the file");
  if (names_index >= count) return damaged("the ELF section names are missing");
  std::vector<std::uint32_t> names(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t row = table + i * kSectionHeader;
    Section section;
    names[i] = *at<std::uint32_t>(file, row);
    section.type = *at<std::uint32_t>(file, row + 4);
    section.size = *at<std::uint64_t>(file, row + 32);
    section.link = *at<std::uint32_t>(file, row + 40);
    section.info = *at<std::uint32_t>(file, row + 44);
    section.entry_size = *at<std::uint64_t>(file, row + 56);
    if (section.type != 0 && section.type != kNoBits) {
      const auto content = part(file, *at<std::uint64_t>(file, row + 24), section.size);
      if (!content) return damaged(fmt::format("ELF section {} lies outside of the file", i));
      section.content = *content;
    }
    elf.sections.push_back(section);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto name = text_at(elf.sections[names_index].content, names[i]);
    if (!name)
      return damaged(fmt::format("the name of ELF section {} lies outside of its table", i));
    elf.sections[i].name = *name;
  }
  return elf;
}

struct Symbol {
  std::string_view name;
  std::uint8_t type = 0, other = 0;
  std::uint16_t section = 0;
  std::uint64_t size = 0;
};

Result<std::vector<Symbol>> read_symbols(const Elf& elf) {
  constexpr std::uint64_t kSymbol = 24;
  std::vector<Symbol> symbols;
  for (const Section& section : elf.sections) {
    if (section.type != kSymbolTable) continue;
    if (section.link >= elf.sections.size() || section.entry_size != kSymbol)
      return damaged("the symbol table names no string table");
    const Bytes names = elf.sections[section.link].content;
    for (std::uint64_t row = 0; row + kSymbol <= section.content.size(); row += kSymbol) {
      Symbol symbol;
      const auto name = text_at(names, *at<std::uint32_t>(section.content, row));
      if (!name) return damaged("the name of a symbol lies outside of its table");
      symbol.name = *name;
      symbol.type = std::to_integer<std::uint8_t>(section.content[row + 4]) & 0xf;
      symbol.other = std::to_integer<std::uint8_t>(section.content[row + 5]);
      symbol.section = *at<std::uint16_t>(section.content, row + 6);
      symbol.size = *at<std::uint64_t>(section.content, row + 16);
      symbols.push_back(symbol);
    }
    break;  // an ELF file has one
  }
  return symbols;
}

/// A mangled name without the hash that nvcc puts into anonymous namespaces: it is made of the
/// source's path.
std::string without_path_hash(std::string_view symbol) {
  constexpr std::string_view kMarker = "_GLOBAL__N_";
  std::string out(symbol);
  for (std::size_t found = 0; (found = out.find(kMarker, found)) != std::string::npos;) {
    std::size_t digits = found;
    while (digits > 0 && out[digits - 1] >= '0' && out[digits - 1] <= '9') --digits;
    std::size_t length = 0;
    const auto read = std::from_chars(out.data() + digits, out.data() + found, length);
    if (digits == found || read.ec != std::errc() || length > out.size() - found) {
      found += kMarker.size();
      continue;
    }
    out.replace(digits, found + length - digits, "12_GLOBAL__N_1");
    found = digits + 14;
  }
  return out;
}

struct Relocation {
  std::uint64_t offset = 0, info = 0;
  std::int64_t addend = 0;
};

Result<std::vector<Relocation>> relocations_of(const Elf& elf, std::size_t target) {
  std::vector<Relocation> out;
  for (const Section& section : elf.sections) {
    if ((section.type != kRel && section.type != kRela) || section.info != target) continue;
    const std::uint64_t step = section.type == kRela ? 24 : 16;
    if (section.content.size() % step != 0) return damaged("a relocation table is cut off");
    for (std::uint64_t row = 0; row < section.content.size(); row += step) {
      Relocation relocation;
      relocation.offset = *at<std::uint64_t>(section.content, row);
      relocation.info = *at<std::uint64_t>(section.content, row + 8);
      if (section.type == kRela) relocation.addend = *at<std::int64_t>(section.content, row + 16);
      out.push_back(relocation);
    }
  }
  std::sort(out.begin(), out.end(), [](const Relocation& a, const Relocation& b) {
    return std::tie(a.offset, a.info, a.addend) < std::tie(b.offset, b.info, b.addend);
  });
  return out;
}

void add_text(Sha256& digest, std::string_view text) {
  const std::uint64_t size = text.size();
  digest.update(&size, sizeof size);
  digest.update(text.data(), text.size());
}
void add_number(Sha256& digest, std::uint64_t number) { digest.update(&number, sizeof number); }
void add_bytes(Sha256& digest, Bytes bytes) {
  add_number(digest, bytes.size());
  digest.update(bytes.data(), bytes.size());
}

/// What a kernel executes, and nothing else of the module: its .text, the relocations into it by
/// name (a symbol's index, value and address belong to the module's layout), the code of other
/// functions that it refers to, and its literal constants (.nv.constant<bank>.<kernel>; bank 0
/// holds the parameters, whose values come at launch). Names are taken without nvcc's hash of the
/// source's path. Debug sections stay out, so that a comment changes nothing.
Status machine_code_digest(const Elf& elf, const std::vector<Symbol>& symbols, std::size_t text,
                           std::set<std::size_t>& seen, Sha256& digest) {
  seen.insert(text);
  const Section& section = elf.sections[text];
  add_bytes(digest, section.content);
  const auto relocations = relocations_of(elf, text);
  if (!relocations) return relocations.status();
  std::vector<std::size_t> called;
  for (const Relocation& relocation : *relocations) {
    const std::uint64_t index = relocation.info >> 32;
    if (index >= symbols.size()) return damaged("a relocation names a symbol that does not exist");
    const Symbol& symbol = symbols[index];
    add_number(digest, relocation.offset);
    add_number(digest, relocation.info & 0xffffffffu);
    add_number(digest, static_cast<std::uint64_t>(relocation.addend));
    add_text(digest, without_path_hash(symbol.name));
    if (symbol.section != text && symbol.section < elf.sections.size() &&
        elf.sections[symbol.section].name.starts_with(".text."))
      called.push_back(symbol.section);
  }
  const std::string_view function = section.name.substr(std::string_view(".text.").size());
  std::map<std::string_view, Bytes> constants;
  for (const Section& other : elf.sections) {
    constexpr std::string_view kConstant = ".nv.constant";
    if (!other.name.starts_with(kConstant) || !other.name.ends_with(function)) continue;
    const std::string_view bank = other.name.substr(kConstant.size());
    if (bank.size() == function.size() + 2 && bank[0] > '0' && bank[1] == '.')
      constants[other.name.substr(0, kConstant.size() + 1)] = other.content;
  }
  for (const auto& [bank, content] : constants) {
    add_text(digest, bank);
    add_bytes(digest, content);
  }
  for (const std::size_t other : called)
    if (!seen.contains(other))
      if (Status status = machine_code_digest(elf, symbols, other, seen, digest); !status)
        return status;
  return {};
}

/// The pairs (symbol, value) of one attribute of .nv.info.
Result<std::map<std::uint32_t, std::uint32_t>> attribute_of_symbols(const Elf& elf,
                                                                    std::uint8_t wanted) {
  std::map<std::uint32_t, std::uint32_t> out;
  const Section* info = elf.find(".nv.info");
  if (info == nullptr) return out;
  for (std::uint64_t offset = 0; offset + 4 <= info->content.size();) {
    const auto format = std::to_integer<std::uint8_t>(info->content[offset]);
    const auto attribute = std::to_integer<std::uint8_t>(info->content[offset + 1]);
    const std::uint64_t size =
        format == kFormatSized ? *at<std::uint16_t>(info->content, offset + 2) : 0;
    const auto value = part(info->content, offset + 4, size);
    if (!value) return damaged(".nv.info is cut off");
    if (attribute == wanted && size == 8)
      out[*at<std::uint32_t>(*value, 0)] = *at<std::uint32_t>(*value, 4);
    offset += 4 + size;
  }
  return out;
}

/// __launch_bounds__: threads of a block in x, y, z.
int max_threads_of(const Elf& elf, std::string_view kernel) {
  const Section* info = elf.find(fmt::format(".nv.info.{}", kernel));
  if (info == nullptr) return 0;
  for (std::uint64_t offset = 0; offset + 4 <= info->content.size();) {
    const auto format = std::to_integer<std::uint8_t>(info->content[offset]);
    const auto attribute = std::to_integer<std::uint8_t>(info->content[offset + 1]);
    const std::uint64_t size =
        format == kFormatSized ? *at<std::uint16_t>(info->content, offset + 2) : 0;
    const auto value = part(info->content, offset + 4, size);
    if (!value) return 0;
    if (attribute == kMaxThreads && size == 12) {
      std::uint64_t product = 1;
      for (int axis = 0; axis < 3; ++axis)
        product *= std::min<std::uint64_t>(*at<std::uint32_t>(*value, 4 * axis), 1 << 16);
      return static_cast<int>(std::min<std::uint64_t>(product, 1 << 16));
    }
    offset += 4 + size;
  }
  return 0;
}

/// What ptxas says of itself in .note.nv.tkinfo: after a header of ELF notes, texts that end with a
/// zero byte.
struct Toolkit {
  std::string version, arch;
};
Toolkit toolkit_of(const Elf& elf) {
  Toolkit out;
  const Section* note = elf.find(".note.nv.tkinfo");
  if (note == nullptr) return out;
  const std::string_view text(reinterpret_cast<const char*>(note->content.data()),
                              note->content.size());
  const auto after = [&](std::string_view word, std::string_view ends) {
    const std::size_t found = text.find(word);
    if (found == std::string_view::npos) return std::string();
    const std::string_view rest = text.substr(found + word.size());
    return std::string(rest.substr(0, std::min(rest.find_first_of(ends), std::size_t{64})));
  };
  out.version = after("Cuda compilation tools, release ", std::string_view("\0", 1));
  out.arch = after("-arch ", std::string_view(" \0", 2));
  return out;
}

Status read_cubin(Bytes file, std::vector<KernelCode>& kernels) {
  const auto elf = read_elf(file);
  if (!elf) return elf.status();
  if (elf->machine != kMachineCuda)
    return damaged(
        fmt::format("a cubin for machine {}, not for CUDA ({})", elf->machine, kMachineCuda));
  const auto symbols = read_symbols(*elf);
  if (!symbols) return symbols.status();
  const auto registers = attribute_of_symbols(*elf, kRegisterCount);
  if (!registers) return registers.status();
  const auto frames = attribute_of_symbols(*elf, kFrameSize);
  if (!frames) return frames.status();
  const Toolkit toolkit = toolkit_of(*elf);
  // From ABI 8 (CUDA 13) the architecture stands in the second byte of the flags, before in the
  // first.
  const int number =
      static_cast<int>(elf->abi_version >= 8 ? elf->flags >> 8 & 0xff : elf->flags & 0xff);
  std::string arch = fmt::format("sm_{}", number);
  if (arch_number(toolkit.arch) == number) arch = toolkit.arch;  // knows the suffix too
  const bool reserves = elf->find(".nv.shared.reserved.0") != nullptr;

  for (std::uint32_t i = 0; i < symbols->size(); ++i) {
    const Symbol& symbol = (*symbols)[i];
    constexpr std::uint8_t kFunction = 2;
    if (symbol.type != kFunction || !(symbol.other & kCudaEntry)) continue;
    if (symbol.section >= elf->sections.size() ||
        elf->sections[symbol.section].name != fmt::format(".text.{}", symbol.name))
      return damaged(fmt::format("kernel {} has no code", symbol.name.substr(0, 200)));
    KernelCode kernel;
    kernel.symbol = symbol.name;
    kernel.arch = arch;
    kernel.compiler = toolkit.version;
    const auto value = [&](const std::map<std::uint32_t, std::uint32_t>& values) {
      const auto found = values.find(i);
      return found == values.end() ? std::uint32_t{0} : found->second;
    };
    if (!registers->contains(i))
      return damaged(fmt::format("kernel {} has no register count", symbol.name.substr(0, 200)));
    kernel.registers = static_cast<int>(std::min<std::uint32_t>(value(*registers), 1 << 16));
    kernel.stack = value(*frames);
    if (const Section* shared = elf->find(fmt::format(".nv.shared.{}", symbol.name))) {
      const auto bytes = static_cast<std::int64_t>(std::min<std::uint64_t>(shared->size, 1u << 30));
      kernel.static_shared = reserves ? std::max<std::int64_t>(0, bytes - kReservedShared) : bytes;
    }
    kernel.max_threads = max_threads_of(*elf, symbol.name);
    kernel.code_bytes = static_cast<std::int64_t>(elf->sections[symbol.section].content.size());
    std::set<std::size_t> seen;
    Sha256 digest;
    if (Status status = machine_code_digest(*elf, *symbols, symbol.section, seen, digest); !status)
      return status;
    kernel.sha256 = digest.hex();
    kernels.push_back(std::move(kernel));
  }
  return {};
}

/// What nvcc compressed, by zstd since 12.8; older ones used LZ4.
Result<std::vector<std::byte>> decompressed(Bytes payload, std::uint64_t size, std::uint32_t arch) {
  constexpr std::uint32_t kZstd = 0xfd2fb528;
  // Its largest cubin has 5 MB; a damaged size must not take the machine's memory.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 28;
  if (at<std::uint32_t>(payload, 0) != kZstd)
    return Status(
        StatusCode::unsupported,
        fmt::format("the machine code for sm_{} is compressed as nvcc before 12.8 does it; "
                    "build it with a newer one, or with -Xfatbin=-no-compress",
                    arch));
  if (size > kMost) return damaged(fmt::format("machine code of {} bytes", size));
  std::vector<std::byte> out(size);
  const std::size_t got = ZSTD_decompress(out.data(), out.size(), payload.data(), payload.size());
  if (ZSTD_isError(got) || got != size) return damaged("compressed machine code");
  return out;
}

using OnCubin = std::function<Status(Bytes)>;

/// A .nv_fatbin section: containers, each with entries of PTX and cubins for several architectures.
Status read_fatbins(Bytes section, std::vector<std::string>& ptx, const OnCubin& on_cubin) {
  constexpr std::uint64_t kContainerHeader = 16, kEntryHeader = 64, kAlignment = 8;
  for (std::uint64_t offset = 0; offset + kContainerHeader <= section.size();) {
    if (*at<std::uint32_t>(section, offset) != kFatbinMagic) {
      offset += kAlignment;  // padding between the containers of object files
      continue;
    }
    const std::uint16_t header = *at<std::uint16_t>(section, offset + 6);
    const std::uint64_t size = *at<std::uint64_t>(section, offset + 8);
    const auto container = part(section, offset + header, size);
    if (header < kContainerHeader || !container) return damaged("a fat binary is cut off");
    for (std::uint64_t entry = 0; entry < container->size();) {
      if (!part(*container, entry, kEntryHeader))
        return damaged("an entry of a fat binary is cut off");
      const std::uint16_t kind = *at<std::uint16_t>(*container, entry);
      const std::uint32_t entry_header = *at<std::uint32_t>(*container, entry + 4);
      const std::uint64_t stored = *at<std::uint64_t>(*container, entry + 8);
      // Both 0 where nothing is compressed.
      const std::uint64_t compressed = *at<std::uint64_t>(*container, entry + 16);
      const std::uint64_t whole = *at<std::uint64_t>(*container, entry + 56);
      const std::uint32_t number = *at<std::uint32_t>(*container, entry + 28);
      const auto payload = part(*container, entry + entry_header, stored);
      if (entry_header < kEntryHeader || !payload)
        return damaged("an entry of a fat binary is cut off");
      if (kind == kKindPtx) {
        const std::string name = fmt::format("compute_{}", number);
        if (std::find(ptx.begin(), ptx.end(), name) == ptx.end() && ptx.size() < 64)
          ptx.push_back(name);
      } else if (kind == kKindElf && is_elf(*payload)) {
        if (Status status = on_cubin(*payload); !status) return status;
      } else if (kind == kKindElf) {
        const auto packed = part(*payload, 0, compressed);
        if (!packed) return damaged("an entry of a fat binary is cut off");
        const auto cubin = decompressed(*packed, whole, number);
        if (!cubin) return cubin.status();
        if (Status status = on_cubin(*cubin); !status) return status;
      }
      entry += entry_header + stored;
    }
    offset += header + size;
    offset = round_up(offset, kAlignment);
  }
  return {};
}

}  // namespace

namespace {

Status for_each_cubin(Bytes file, std::vector<std::string>& ptx, const OnCubin& on_cubin) {
  constexpr std::string_view kArchive = "!<arch>\n";
  if (file.size() >= kArchive.size() &&
      std::memcmp(file.data(), kArchive.data(), kArchive.size()) == 0)
    return {StatusCode::unsupported,
            "an archive; possible are an executable, a shared library, an object, a cubin"};
  const auto elf = read_elf(file);
  if (!elf) return elf.status();
  if (elf->machine == kMachineCuda) return on_cubin(file);
  for (const Section& section : elf->sections) {
    if (section.name != ".nv_fatbin") continue;
    if (Status status = read_fatbins(section.content, ptx, on_cubin); !status) return status;
  }
  return {};
}

}  // namespace

Result<DeviceCode> read_device_code(Bytes file) {
  DeviceCode code;
  const Status status =
      for_each_cubin(file, code.ptx, [&](Bytes cubin) { return read_cubin(cubin, code.kernels); });
  if (!status) return status;
  return code;
}

Result<std::vector<std::vector<std::byte>>> read_cubins(Bytes file) {
  std::vector<std::vector<std::byte>> cubins;
  std::vector<std::string> ptx;
  const Status status = for_each_cubin(file, ptx, [&](Bytes cubin) {
    cubins.emplace_back(cubin.begin(), cubin.end());
    return Status{};
  });
  if (!status) return status;
  return cubins;
}

Result<DeviceCode> read_device_code(const std::filesystem::path& file) {
  const auto bytes = read_file(file);
  if (!bytes) return bytes.status();
  auto code = read_device_code(std::as_bytes(std::span(*bytes)));
  if (!code)
    return Status(code.status().code(),
                  fmt::format("{}: {}", file.string(), code.status().message()));
  code->file = file.string();
  for (KernelCode& kernel : code->kernels) kernel.name = kernel_name(kernel.symbol);
  return code;
}

const Result<DeviceCode>& own_device_code() {
  static const Result<DeviceCode> code = [] {
    auto own = read_device_code(std::filesystem::path("/proc/self/exe"));
    if (own.ok()) {
      std::error_code error;
      const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
      if (!error) own->file = path.string();
    }
    return own;
  }();
  return code;
}

int arch_number(std::string_view arch) {
  constexpr std::string_view kPrefix = "sm_";
  if (!arch.starts_with(kPrefix)) return 0;
  const char *begin = arch.data() + kPrefix.size(), *end = arch.data() + arch.size();
  int number = 0;
  const auto read = std::from_chars(begin, end, number);
  const bool plain = read.ptr == end,
             suffixed = end - read.ptr == 1 && *read.ptr >= 'a' && *read.ptr <= 'z';
  return read.ec == std::errc() && (plain || suffixed) ? number : 0;
}

std::vector<const KernelCode*> kernels_for(const DeviceCode& code, int arch) {
  struct Best {
    const KernelCode* kernel = nullptr;
    int score = -1;
  };
  std::map<std::pair<std::string_view, std::string_view>, Best> kernels;
  for (const KernelCode& kernel : code.kernels) {
    const int number = arch_number(kernel.arch);
    const bool exact_only =
        !kernel.arch.empty() && kernel.arch.back() >= 'a' && kernel.arch.back() <= 'z';
    if (number / 10 != arch / 10 || number > arch || (exact_only && number != arch)) continue;
    const int score = 2 * number + (exact_only ? 1 : 0);
    Best& best = kernels[{kernel.symbol, kernel.name}];
    if (score > best.score) best = {&kernel, score};
  }
  std::vector<const KernelCode*> out;
  for (const auto& [name, best] : kernels) out.push_back(best.kernel);
  return out;
}

const KernelCode* find_kernel(const DeviceCode& code, std::string_view name, int arch) {
  for (const KernelCode* kernel : kernels_for(code, arch))
    if (kernel->name == name) return kernel;
  return nullptr;
}

}  // namespace greenfast::workbench
