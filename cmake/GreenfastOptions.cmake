# Warnings and sanitizers, the same for every host target of the project.
add_library(greenfast_options INTERFACE)
target_compile_options(greenfast_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Werror>
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Werror>)
if(GREENFAST_SANITIZE)
  target_compile_options(greenfast_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${GREENFAST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g>)
  target_link_options(greenfast_options INTERFACE -fsanitize=${GREENFAST_SANITIZE})
endif()
