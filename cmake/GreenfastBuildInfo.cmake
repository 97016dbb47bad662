# What a record says of the binary that wrote it: toolchain and flags when configured, git state at every build.
string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_type}}" GREENFAST_BUILD_FLAGS)
set(GREENFAST_BUILD_CUDA "")
if(GREENFAST_HAVE_CUDA)
  set(GREENFAST_BUILD_CUDA "nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
  string(STRIP "${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${_type}}" GREENFAST_BUILD_CUDA_FLAGS)
  string(REPLACE ";" "," GREENFAST_BUILD_CUDA_ARCHS "${GREENFAST_CUDA_ARCHS}")
endif()
set(_info ${PROJECT_BINARY_DIR}/build_info)
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_config.hpp.in ${_info}/build_config.hpp @ONLY)

find_package(Git QUIET)
set(GREENFAST_GIT_SHA "" CACHE STRING "The commit, where the sources come without their repository (an archive, another machine)")
add_custom_target(greenfast_git_state
  COMMAND ${CMAKE_COMMAND} -DGIT=${GIT_EXECUTABLE} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${_info}/git_state.hpp
          -DSHA=${GREENFAST_GIT_SHA} -P ${CMAKE_CURRENT_LIST_DIR}/git_state.cmake
  BYPRODUCTS ${_info}/git_state.hpp
  VERBATIM)
add_library(greenfast_build_info INTERFACE)
target_include_directories(greenfast_build_info INTERFACE ${_info})
add_dependencies(greenfast_build_info greenfast_git_state)
