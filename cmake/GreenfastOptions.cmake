# Warnings and sanitizers, the same for every host target of the project; and a compiler cache where there is one.
add_library(greenfast_options INTERFACE)
target_compile_options(greenfast_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Werror>
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Werror>)

# For code that reads, decides and reports: with GCC in 70 to 80% of the time of -O1 (2026-11-21).
set(GREENFAST_COLD $<$<CONFIG:Release>:$<IF:$<CXX_COMPILER_ID:GNU>,-Og,-O1>>)
# Under sanitizers clang optimises for half its time (2026-11-23).
if(GREENFAST_SANITIZE)
  set(GREENFAST_COLD -O0)
endif()

if(GREENFAST_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "GREENFAST_FUZZ=ON needs clang for libFuzzer, this is ${CMAKE_CXX_COMPILER_ID}: use the preset sanitize.")
endif()
set(_greenfast_sanitizers ${GREENFAST_SANITIZE})
if(GREENFAST_FUZZ)
  # Coverage feedback for the fuzz targets, from what they call. (A source may be without sanitizers; then clang
  # has no use for the list.)
  list(APPEND _greenfast_sanitizers fuzzer-no-link)
  target_compile_options(greenfast_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize-coverage-allowlist=${PROJECT_SOURCE_DIR}/fuzz/covered.txt
      -Wno-unused-command-line-argument>)
endif()
if(_greenfast_sanitizers)
  list(JOIN _greenfast_sanitizers "," _greenfast_sanitizers)
  target_compile_options(greenfast_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${_greenfast_sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_compile_definitions(greenfast_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(greenfast_options INTERFACE -fsanitize=${_greenfast_sanitizers})
endif()

# greenfast_never_runs(RESULT FLAG): whether nothing of this build runs code for processors with FLAG, of /proc/cpuinfo. Sanitized
# builds run where they are made; others may go anywhere.
set(_greenfast_flags "")
if(GREENFAST_SANITIZE AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo _greenfast_flags REGEX "^flags" LIMIT_COUNT 1)
endif()
function(greenfast_never_runs result flag)
  set(${result} OFF PARENT_SCOPE)
  if(_greenfast_flags AND NOT "${_greenfast_flags} " MATCHES " ${flag} ")
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()

option(GREENFAST_CCACHE "Compile through ccache where it is installed" ${PROJECT_IS_TOP_LEVEL})
find_program(GREENFAST_CCACHE_PROGRAM ccache)
if(GREENFAST_CCACHE AND GREENFAST_CCACHE_PROGRAM)
  # ccache takes sources that use a precompiled header only when told that their macros and times do not matter.
  list(PREPEND GREENFAST_CCACHE_PROGRAM ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime)
  foreach(language IN ITEMS C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${GREENFAST_CCACHE_PROGRAM})
    endif()
  endforeach()
endif()
