// Small cubins and fat binaries, laid out as nvcc 13 does, for tests without nvcc.
#pragma once

#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <greenfast/arithmetic.hpp>

namespace greenfast::workbench::test {

using Bytes = std::vector<std::byte>;

template <class T>
void put(Bytes& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}
inline void put(Bytes& out, const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}
inline Bytes bytes_of(const std::string& text) {
  Bytes out;
  put(out, text);
  return out;
}

struct FakeKernel {
  std::string symbol = "_ZN9greenfast4cuda1k4mainE";
  std::string code = "sixteen bytes of";
  std::uint32_t registers = 40, frame = 0;
  std::uint64_t shared = 0;    // as the section says
  std::string constants = {};  // .nv.constant2
  std::string refers_to = {};  // a symbol that a relocation names
};

struct FakeSection {
  std::string name;
  std::uint32_t type = 1, link = 0, info = 0;
  Bytes content = {};
  std::uint64_t size = 0, entry_size = 0;  // size: for sections without bytes
};

inline Bytes make_elf(std::vector<FakeSection> sections, std::uint16_t machine, std::uint8_t abi,
                      std::uint32_t flags) {
  sections.insert(sections.begin(), FakeSection{.name = "", .type = 0, .content = {}});
  sections.push_back({.name = ".shstrtab", .type = 3, .content = {}});
  Bytes& names = sections.back().content;
  std::vector<std::uint32_t> name_offsets;
  for (const FakeSection& section : sections) {
    name_offsets.push_back(static_cast<std::uint32_t>(names.size()));
    put(names, section.name);
    names.push_back({});
  }
  Bytes out;
  put(out, std::string("\177ELF\2\1\1", 7));
  put(out, std::uint8_t{65});
  put(out, abi);
  out.resize(16);
  put(out, std::uint16_t{2});
  put(out, machine);
  put(out, std::uint32_t{1});
  put(out, std::uint64_t{0});
  put(out, std::uint64_t{0});
  std::uint64_t data = 64;
  for (const FakeSection& section : sections) data += section.content.size();
  put(out, data);  // the section table follows the contents
  put(out, flags);
  put(out, std::uint16_t{64});
  put(out, std::uint32_t{0});
  put(out, std::uint16_t{64});
  put(out, static_cast<std::uint16_t>(sections.size()));
  put(out, static_cast<std::uint16_t>(sections.size() - 1));
  std::vector<std::uint64_t> offsets;
  for (const FakeSection& section : sections) {
    offsets.push_back(out.size());
    out.insert(out.end(), section.content.begin(), section.content.end());
  }
  for (std::size_t i = 0; i < sections.size(); ++i) {
    put(out, name_offsets[i]);
    put(out, sections[i].type);
    put(out, std::uint64_t{0});
    put(out, std::uint64_t{0});
    put(out, offsets[i]);
    put(out, sections[i].content.empty() ? sections[i].size : sections[i].content.size());
    put(out, sections[i].link);
    put(out, sections[i].info);
    put(out, std::uint64_t{1});
    put(out, sections[i].entry_size);
  }
  return out;
}

/// debug: the content of .debug_line, which no digest may depend on.
inline Bytes make_cubin(const std::vector<FakeKernel>& kernels, const std::string& arch = "sm_90a",
                        const std::string& debug = "lines") {
  std::vector<FakeSection> sections;
  sections.push_back({.name = ".strtab", .type = 3, .content = bytes_of(std::string(1, '\0'))});
  sections.push_back({.name = ".symtab", .type = 2, .link = 1, .content = {}, .entry_size = 24});
  sections.push_back({.name = ".nv.info", .type = 0x70000000, .content = {}});
  sections.push_back({.name = ".debug_line", .content = bytes_of(debug)});
  sections.push_back(
      {.name = ".note.nv.tkinfo",
       .type = 7,
       .content =
           bytes_of(std::string("NVIDIA Corp\0Cuda compilation tools, release 13.0, V13.0.88\0"
                                "-v -arch ",
                                68) +
                    arch + " -m 64 ")});
  if (arch == "sm_90a")
    sections.push_back({.name = ".nv.shared.reserved.0", .type = 8, .content = {}});
  const auto symbol = [&](const std::string& name, std::uint8_t type, std::uint8_t other,
                          std::size_t section) {
    Bytes& text = sections[0].content;
    Bytes& table = sections[1].content;
    put(table, static_cast<std::uint32_t>(text.size()));
    put(table, type);
    put(table, other);
    put(table, static_cast<std::uint16_t>(section));
    put(table, std::uint64_t{0});
    put(table, std::uint64_t{0});
    put(text, name);
    text.push_back({});
    return static_cast<std::uint32_t>(table.size() / 24 - 1);
  };
  symbol("", 0, 0, 0);
  for (const FakeKernel& kernel : kernels) {
    const std::size_t text = sections.size() + 1;  // counting the empty first section
    sections.push_back({.name = ".text." + kernel.symbol, .content = bytes_of(kernel.code)});
    const std::uint32_t index = symbol(kernel.symbol, 2, 0x10, text);
    Bytes& info = sections[2].content;
    for (const auto& [attribute, value] :
         {std::pair{0x2f, kernel.registers}, std::pair{0x11, kernel.frame}}) {
      put(info, std::uint8_t{4});
      put(info, static_cast<std::uint8_t>(attribute));
      put(info, std::uint16_t{8});
      put(info, index);
      put(info, value);
    }
    if (kernel.shared > 0)
      sections.push_back(
          {.name = ".nv.shared." + kernel.symbol, .type = 8, .content = {}, .size = kernel.shared});
    if (!kernel.constants.empty())
      sections.push_back(
          {.name = ".nv.constant2." + kernel.symbol, .content = bytes_of(kernel.constants)});
    if (!kernel.refers_to.empty()) {
      Bytes relocation;
      put(relocation, std::uint64_t{8});
      put(relocation, std::uint64_t{symbol(kernel.refers_to, 1, 0, 0)} << 32 | 2);
      put(relocation, std::int64_t{0});
      sections.push_back({.name = ".rela.text." + kernel.symbol,
                          .type = 4,
                          .link = 2,
                          .info = static_cast<std::uint32_t>(text),
                          .content = relocation,
                          .entry_size = 24});
    }
  }
  const std::uint32_t number = static_cast<std::uint32_t>(std::stoi(arch.substr(3)));
  return make_elf(std::move(sections), 190, 8, number << 8 | 0x6000004);
}

struct FakeEntry {
  std::uint16_t kind = 2;  // 1: PTX
  std::uint32_t arch = 90;
  Bytes payload = {};
  std::uint64_t compressed = 0, whole = 0;  // 0: the payload is as it is
};

/// As nvcc --compress-mode=size writes it.
inline FakeEntry compressed_entry(const Bytes& payload) {
  FakeEntry entry{.payload = Bytes(ZSTD_compressBound(payload.size())), .whole = payload.size()};
  entry.compressed =
      ZSTD_compress(entry.payload.data(), entry.payload.size(), payload.data(), payload.size(), 19);
  entry.payload.resize(entry.compressed);
  return entry;
}

/// A host file with one fat binary.
inline Bytes make_host_file(const std::vector<FakeEntry>& entries) {
  Bytes body;
  for (const FakeEntry& entry : entries) {
    put(body, entry.kind);
    put(body, std::uint16_t{257});
    put(body, std::uint32_t{64});
    const std::uint64_t padded = round_up(entry.payload.size(), std::size_t{8});
    put(body, padded);
    put(body, entry.compressed);
    put(body, std::uint32_t{0});
    put(body, entry.arch);
    body.resize(body.size() + 24);
    put(body, entry.whole);
    body.insert(body.end(), entry.payload.begin(), entry.payload.end());
    body.resize(body.size() + padded - entry.payload.size());
  }
  Bytes fatbin;
  fatbin.resize(16);  // padding of the linker
  put(fatbin, std::uint32_t{0xBA55ED50});
  put(fatbin, std::uint16_t{1});
  put(fatbin, std::uint16_t{16});
  put(fatbin, static_cast<std::uint64_t>(body.size()));
  fatbin.insert(fatbin.end(), body.begin(), body.end());
  return make_elf({{.name = ".nv_fatbin", .content = fatbin}}, 62, 0, 0);
}

}  // namespace greenfast::workbench::test
