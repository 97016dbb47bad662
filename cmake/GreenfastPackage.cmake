# Installs the library with what CMake (find_package(greenfast)) and pkg-config need to find it. Everything is relative
# to the installed files, so that the folder may be moved.
include(CMakePackageConfigHelpers)

set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/greenfast)
install(TARGETS greenfast greenfast_static EXPORT greenfast-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/greenfast DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT library)
install(EXPORT greenfast-targets NAMESPACE greenfast:: DESTINATION ${_package} COMPONENT library)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/greenfast-config.cmake.in
  ${PROJECT_BINARY_DIR}/package/greenfast-config.cmake
  INSTALL_DESTINATION ${_package} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the C++ interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/greenfast-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/package/greenfast-config.cmake
  ${PROJECT_BINARY_DIR}/package/greenfast-config-version.cmake
  DESTINATION ${_package} COMPONENT library)

# pkg-config: greenfast is the shared library, greenfast-static the archive with everything it needs.
file(RELATIVE_PATH _prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(_static_libs ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER _static_libs INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|m)$")
list(REMOVE_DUPLICATES _static_libs)
list(TRANSFORM _static_libs PREPEND -l)
list(JOIN _static_libs " " _static_libs)
string(APPEND _static_libs " -pthread")
if(GREENFAST_HAVE_CUDA)
  string(APPEND _static_libs " -ldl -lrt")
endif()
foreach(_name greenfast greenfast-static)
  if(_name STREQUAL "greenfast")
    set(_libs "-L\${libdir} -lgreenfast")
    set(_cflags "-I\${includedir}")
  else()
    set(_libs "\${libdir}/libgreenfast.a ${_static_libs}")
    set(_cflags "-I\${includedir} -DGREENFAST_STATIC")
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/package/${_name}.pc @ONLY CONTENT
"prefix=\${pcfiledir}/@_prefix@
libdir=\${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=\${prefix}/@CMAKE_INSTALL_INCLUDEDIR@

Name: @_name@
Description: Fused scaled-dot-product attention for CPUs and NVIDIA GPUs
Version: @PROJECT_VERSION@
Libs: @_libs@
Cflags: @_cflags@
")
  install(FILES ${PROJECT_BINARY_DIR}/package/${_name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endforeach()
