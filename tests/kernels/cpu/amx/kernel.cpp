// cpu.flash's code for AMX, compiled once more with tiles in software; a symbol of its own, because
// the library's stays beside it.
#include <immintrin.h>

#include "tests/kernels/cpu/amx/tiles.hpp"

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) ::greenfast::test::tiles::load_config(config)
#define _tile_storeconfig(config) ::greenfast::test::tiles::store_config(config)
#define _tile_release() ::greenfast::test::tiles::release()
#define _tile_zero(tile) ::greenfast::test::tiles::zero(tile)
#define _tile_loadd(tile, from, stride) ::greenfast::test::tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::greenfast::test::tiles::store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) ::greenfast::test::tiles::dot(sums, a, b)

#define avx512amx avx512amx_in_software
#include "kernels/cpu/20_flash_avx512amx.cpp"
