# Writes OUT with the commit that SOURCE stands at and a digest of what differs from it; touches OUT only when that
# changed, so that an unchanged tree rebuilds nothing. SHA names the commit of sources without a repository.
set(sha "${SHA}")
set(dirty false)
set(diff "")
if(sha STREQUAL "" AND GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --verify --quiet HEAD
    OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${GIT} -C ${SOURCE} diff HEAD OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT changes STREQUAL "")
    set(dirty true)
    string(SHA256 diff "${changes}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Generated at every build by git_state.cmake.
#pragma once

#define GREENFAST_GIT_SHA "@sha@"
#define GREENFAST_GIT_DIRTY @dirty@
#define GREENFAST_GIT_DIFF_SHA256 "@diff@"
]])
