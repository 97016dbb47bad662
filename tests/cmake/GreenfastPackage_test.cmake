# What a user of the installed library meets: installs it, moves the folder, builds the examples against it with CMake
# and with pkg-config, runs them, and looks at what the shared library exports, needs and weighs.
# Variables: BUILD (build folder of the project), SOURCE (its root), SCRATCH, CPU_ONLY (no CUDA in the library), GENERATOR.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --component library --prefix ${SCRATCH}/installed)
set(prefix ${SCRATCH}/moved)
file(RENAME ${SCRATCH}/installed ${prefix})
file(GLOB library ${prefix}/lib*/libgreenfast.so ${prefix}/lib/*/libgreenfast.so)
cmake_path(GET library PARENT_PATH libdir)

# CMake
foreach(example cpp c)
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/${example} -B ${SCRATCH}/cmake_${example} -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${prefix})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/cmake_${example})
endforeach()
foreach(program cmake_cpp/example cmake_cpp/example_static cmake_cpp/generate cmake_c/example)
  run(${SCRATCH}/${program})
  message(STATUS "${program}: ${output}")
endforeach()
# A version that this package is not compatible with is refused.
file(WRITE ${SCRATCH}/newer/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(newer NONE)\nfind_package(greenfast 99 REQUIRED)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/newer -B ${SCRATCH}/newer/build -DCMAKE_PREFIX_PATH=${prefix}
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
if(code EQUAL 0)
  message(FATAL_ERROR "find_package(greenfast 99) accepted this version")
endif()

# As a subdirectory of another project: its targets under the same names, and nothing but the library.
file(WRITE ${SCRATCH}/parent/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES C CXX)
add_subdirectory(${SOURCE} greenfast)
add_executable(example ${SOURCE}/examples/cpp/main.cpp)
target_link_libraries(example PRIVATE greenfast::greenfast_static)
if(TARGET greenfast_cli OR TARGET greenfast_workbench OR NOT TARGET greenfast::greenfast)
  message(FATAL_ERROR \"other targets than the library's\")
endif()
")
run(${CMAKE_COMMAND} -S ${SCRATCH}/parent -B ${SCRATCH}/parent/build -G ${GENERATOR} -DGREENFAST_CUDA=off)

# pkg-config
find_program(pkg_config pkg-config REQUIRED)
find_program(make make REQUIRED)
foreach(example cpp c)
  file(COPY ${SOURCE}/examples/${example} DESTINATION ${SCRATCH}/pkgconfig)
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${libdir}/pkgconfig ${make} -C ${SCRATCH}/pkgconfig/${example})
  foreach(program example example_static)
    run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${SCRATCH}/pkgconfig/${example}/${program})
    message(STATUS "pkgconfig/${example}/${program}: ${output}")
  endforeach()
endforeach()

# Exports: the C interface and namespace greenfast, without its inner namespaces.
run(nm -D --defined-only ${library})
string(REGEX MATCHALL "[^\n]+" lines "${output}")
set(exported 0)
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^.* " "" symbol "${line}")
  if(NOT symbol MATCHES "^(gf_|_ZNK?9greenfast)" OR symbol MATCHES "9greenfast(4core|8dispatch|3api|3cpu|4cuda|7kernels)")
    message(FATAL_ERROR "the shared library exports ${symbol}")
  endif()
  math(EXPR exported "${exported} + 1")
endforeach()
if(exported LESS 30)
  message(FATAL_ERROR "the shared library exports only ${exported} symbols:\n${output}")
endif()

# Needs: the C++ runtime and the C library, nothing else.
run(objdump -p ${library})
string(REGEX MATCHALL "NEEDED +[^\n]+" needed "${output}")
foreach(line IN LISTS needed)
  string(REGEX REPLACE "^NEEDED +" "" name "${line}")
  if(NOT name MATCHES "^(libstdc\\+\\+|libc\\+\\+|libc\\+\\+abi|libm|libgcc_s|libc|ld-linux.*|libdl|librt|libpthread)\\.so")
    message(FATAL_ERROR "the shared library needs ${name}")
  endif()
endforeach()
if(NOT output MATCHES "SONAME +libgreenfast\\.so\\.[0-9]")
  message(FATAL_ERROR "the shared library has no versioned SONAME:\n${output}")
endif()

# Weighs: under 2 MB stripped, CPU kernels alone.
if(CPU_ONLY)
  run(strip -o ${SCRATCH}/stripped.so ${library})
  file(SIZE ${SCRATCH}/stripped.so bytes)
  message(STATUS "stripped shared library: ${bytes} bytes, ${exported} exported symbols")
  if(bytes GREATER_EQUAL 2000000)
    message(FATAL_ERROR "the stripped shared library has ${bytes} bytes, and 2000000 is its limit")
  endif()
endif()
