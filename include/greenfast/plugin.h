/** @file
 * The plugin ABI, C99: how a kernel of yours gets in front of the greenfast command. A plugin is a
 * shared object that exports one function, gf_plugin_get, which returns a table of kernels:
 * @code
 *   static gf_status launch(const gf_plugin_call* call) { ... return GF_OK; }
 *   static const gf_plugin_kernel kKernels[] = {{.struct_size = sizeof(gf_plugin_kernel),
 *                                                .device = GF_CPU,
 *                                                .name = "mine",
 *                                                .launch = launch}};
 *   static const gf_plugin kPlugin = GF_PLUGIN_INIT("me", kKernels);
 *   GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
 * @endcode
 * The kernel is then called plugin:mine wherever the command takes a variant. docs/plugins.md says
 * how it is compiled, run and judged.
 *
 * Rules of the ABI. gf_plugin begins with the version it was written for; another version is
 * refused by name before anything else is read. Within a version structs grow at their end alone
 * and say their size. What gf_plugin_get returns lives as long as the process. A plugin runs in a
 * process of its own, is called from one thread at a time, and may start threads, but must be done
 * with a call when it returns (CPU) or enqueue all of it on the call's stream (CUDA). Problems that
 * reach it have passed gf_check, have at least one output element and one key, and need no feature
 * that version 1 did not have (gf_feature_value): a later one is refused in the plugin's name. */
#ifndef GREENFAST_PLUGIN_H
#define GREENFAST_PLUGIN_H

#include <greenfast/greenfast.h>

#ifdef __cplusplus
#define GF_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))
extern "C" {
#else
#define GF_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/** Changes when a plugin built for an older number could not run any more. */
#define GF_PLUGIN_ABI_VERSION 1u

/** One call: everything a kernel may read or write. Nothing in it outlives the call. */
typedef struct gf_plugin_call {
  uint32_t struct_size;
  uint32_t reserved;
  /** Shapes, types, strides (in elements), mask, scale: as for gf_attention. */
  const gf_problem* problem;
  /** Q [B, Hq, Sq, D], K and V [B, Hkv, Skv, D], O [B, Hq, Sq, D], LSE fp32 [B, Hq, Sq] or null,
   * scales or null; on the kernel's device. O, LSE and the workspace hold garbage when the call
   * begins; inputs, and whatever lies outside these tensors' elements, must stay as they are. */
  const gf_tensors* tensors;
  void* workspace; /**< 256-byte aligned, as large as workspace_bytes asked; null for 0 */
  size_t workspace_bytes;
  void* stream; /**< cudaStream_t; null on the CPU */
  char* error;  /**< on failure: a message of at most error_capacity bytes with its final null */
  size_t error_capacity;
} gf_plugin_call;

/** One kernel in one configuration. */
typedef struct gf_plugin_kernel {
  uint32_t struct_size; /**< sizeof(gf_plugin_kernel) */
  gf_device device;     /**< GF_CPU or GF_CUDA; all kernels of a plugin have the same */
  const char* name;     /**< letters, digits, '_', '-' and '.'; unique in the plugin */
  const char* idea;     /**< one line, may be null */
  /** Not 0 when the kernel takes the problem; otherwise writes the reason: what was asked, what is
   * possible. Pure. Null: takes everything. */
  int (*supports)(const gf_problem* problem, char* why, size_t capacity);
  /** Bytes of scratch that a call of this problem needs. Pure. Null: none. */
  size_t (*workspace_bytes)(const gf_problem* problem);
  /** Does once what a first call would do; before the first call of a problem. May be null. */
  gf_status (*prepare)(const gf_problem* problem);
  /** Computes attention. CPU: returns when the output is written. CUDA: enqueues on call->stream,
   * never synchronises. Anything but GF_OK is a failure of the kernel; say why in call->error. */
  gf_status (*launch)(const gf_plugin_call* call);
} gf_plugin_kernel;

/** What gf_plugin_get returns. */
typedef struct gf_plugin {
  uint32_t abi_version; /**< GF_PLUGIN_ABI_VERSION; stays the first field in every version */
  uint32_t struct_size;
  const char* name; /**< of the plugin, for records */
  const gf_plugin_kernel* kernels;
  size_t kernel_count; /**< 1 to 64 */
} gf_plugin;

/** Initial value of a gf_plugin from its name and an array of kernels. */
#define GF_PLUGIN_INIT(name, kernels)                                  \
  {                                                                    \
    GF_PLUGIN_ABI_VERSION, (uint32_t)sizeof(gf_plugin), name, kernels, \
        sizeof(kernels) / sizeof((kernels)[0])                         \
  }

/** The one symbol a plugin exports; define it with GF_PLUGIN_EXPORT. */
typedef const gf_plugin* (*gf_plugin_get_function)(void);
/** Its name. */
#define GF_PLUGIN_ENTRY "gf_plugin_get"

#ifdef __cplusplus
}
#endif

#endif
