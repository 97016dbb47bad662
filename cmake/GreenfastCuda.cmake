# Finds nvcc as GREENFAST_CUDA asks, and compiles one kernel file for every requested architecture it can run on.
include(CheckLanguage)
include(GreenfastKernelSources)
string(TOLOWER "${GREENFAST_CUDA}" _greenfast_cuda)
set(GREENFAST_HAVE_CUDA OFF)
if(_greenfast_cuda STREQUAL "auto" OR _greenfast_cuda STREQUAL "on")
  # Every target names its architectures itself.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake before 3.26 does not know that nvcc 12 and later take C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    # Debian 12's CMake 3.25.1 marks CUDA::nvToolsExt as deprecated without asking whether the toolkit still has it;
    # 13.0 has not, and find_package would fail.
    if(NOT TARGET CUDA::nvToolsExt)
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(GREENFAST_HAVE_CUDA ON)
  elseif(_greenfast_cuda STREQUAL "on")
    message(FATAL_ERROR "GREENFAST_CUDA=on, but no nvcc was found. Put nvcc 13.0 on PATH, set CMAKE_CUDA_COMPILER, or choose GREENFAST_CUDA=off.")
  endif()
elseif(NOT _greenfast_cuda STREQUAL "off")
  message(FATAL_ERROR "GREENFAST_CUDA=${GREENFAST_CUDA}: expected auto, on or off.")
endif()
if(GREENFAST_HAVE_CUDA)
  message(STATUS "CUDA kernels: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${GREENFAST_CUDA_ARCHS}")
else()
  message(STATUS "CUDA kernels: not built (GREENFAST_CUDA=${GREENFAST_CUDA})")
endif()

# greenfast_cuda_kernel(NAME [LADDER|EXPERIMENTAL] MIN 80|89|90a SOURCES file.cu... [BY_ARCH file.cu...])
# An OBJECT library compiled for every architecture of GREENFAST_CUDA_ARCHS at or above MIN. An 'a' suffix means
# exactly that one: such machine code does not run on later GPUs. Others add PTX of the lowest architecture.
# SOURCES become PTX once, of the lowest architecture, and machine code of it for each: a third of nvcc's time for the same
# instructions, bit for bit (CUDA 13.0, 2026-11-28). Those BY_ARCH become PTX for each, because they, or what they use of
# cuda_bf16.h (__bfloat162float, with an instruction from 9.0 on), ask for __CUDA_ARCH__. What asks for it here has no definition in
# other sources (GREENFAST_PTX_ONCE): ptxas stops; what a header of CUDA asks for nothing stops.
# What ptxas says about registers and spills lies beside each object, for tools/ptxas_gate.
# LADDER, EXPERIMENTAL: left out where GREENFAST_LADDER, GREENFAST_EXPERIMENTAL is off; rows of experimental kernels in
# variants.def stand in #if GREENFAST_EXPERIMENTAL. Every build notes the sources, which is all that one without CUDA does.
function(greenfast_cuda_kernel name)
  cmake_parse_arguments(arg "LADDER;EXPERIMENTAL" "MIN" "SOURCES;BY_ARCH" ${ARGN})
  greenfast_kernel_sources(${name} ${arg_SOURCES} ${arg_BY_ARCH})
  if(arg_EXPERIMENTAL AND NOT GREENFAST_EXPERIMENTAL)
    return()
  endif()
  if(NOT GREENFAST_HAVE_CUDA OR (arg_LADDER AND NOT GREENFAST_LADDER))
    return()
  endif()
  set(real "")
  foreach(arch IN LISTS GREENFAST_CUDA_ARCHS)
    string(REGEX REPLACE "[a-z]+$" "" number ${arch})
    if(arg_MIN MATCHES "a$")
      if(arch STREQUAL arg_MIN)
        list(APPEND real ${arch})
      endif()
    elseif(number GREATER_EQUAL arg_MIN)
      list(APPEND real ${arch})
      if(NOT DEFINED lowest OR number LESS lowest)
        set(lowest ${number})
      endif()
    endif()
  endforeach()
  if(NOT real)
    message(STATUS "  ${name}: no requested architecture at or above ${arg_MIN}, not built")
    return()
  endif()
  set(by_arch ${real})
  list(TRANSFORM by_arch REPLACE "(.+)" "--generate-code=arch=compute_\\1,code=[sm_\\1]")
  set(once ${by_arch})
  if(DEFINED lowest)
    list(APPEND by_arch --generate-code=arch=compute_${lowest},code=[compute_${lowest}])
    list(JOIN real ",sm_" codes)
    set(once --generate-code=arch=compute_${lowest},code=[sm_${codes},compute_${lowest}] -DGREENFAST_PTX_ONCE)
  endif()
  add_library(${name} OBJECT ${arg_SOURCES} ${arg_BY_ARCH})
  foreach(source IN LISTS arg_SOURCES)
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${once}")
  endforeach()
  foreach(source IN LISTS arg_BY_ARCH)
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${by_arch}")
  endforeach()
  # A list, because a newer CMake passes an empty element on as an argument.
  set(launcher ${PROJECT_SOURCE_DIR}/tools/ptxas_log ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${name} PROPERTIES
    CUDA_ARCHITECTURES OFF CUDA_SEPARABLE_COMPILATION OFF CUDA_COMPILER_LAUNCHER "${launcher}"
    UNITY_BUILD OFF)  # from CMake 3.31 on it takes CUDA too, and each .cu has names of its own
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v,-warn-spills --expt-relaxed-constexpr>)
  if(GREENFAST_LINEINFO)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  endif()
  # An eighth of the size; drivers from 12.4 on read it, and this nvcc's code needs a newer one anyway.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
  if(GREENFAST_EXPERIMENTAL)
    target_compile_definitions(${name} PRIVATE GREENFAST_EXPERIMENTAL=1)
  endif()
  if(arg_LADDER)
    if(NOT TARGET ladder_kernels)
      add_custom_target(ladder_kernels)  # without library and command, for tools/test experimental
    endif()
    add_dependencies(ladder_kernels ${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY GREENFAST_CUDA_OBJECTS $<TARGET_OBJECTS:${name}>)
  set_property(GLOBAL APPEND PROPERTY GREENFAST_CUDA_BUILT ${name})
  # What selection must know of the code: the registry reads it from the generated greenfast_built.hpp.
  if(DEFINED lowest)
    set(exact false)
  else()
    string(REGEX REPLACE "[a-z]+$" "" lowest ${arg_MIN})
    set(exact true)
  endif()
  string(CONCAT macros
    "#define GREENFAST_BUILT_${name} 0, 0\n"
    "#define GREENFAST_LOWEST_ARCH_${name} ${lowest}\n"
    "#define GREENFAST_EXACT_ARCH_${name} ${exact}\n")
  set_property(GLOBAL APPEND_STRING PROPERTY GREENFAST_CUDA_BUILT_MACROS "${macros}")
endfunction()

# greenfast_cuda_list_objects(): after the last kernel, lists their objects for tools/ptxas_gate.
function(greenfast_cuda_list_objects)
  get_property(objects GLOBAL PROPERTY GREENFAST_CUDA_OBJECTS)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/ptxas_objects.txt CONTENT "$<JOIN:${objects},\n>\n")
endfunction()
