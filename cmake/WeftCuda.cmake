# GPUs. The library calls NVIDIA's driver and cuBLAS, which it loads at run time: it links nothing of CUDA, and is built
# the same with and without a CUDA toolkit. Only the kernels need one: with an nvcc (WEFT_CUDA=ON, or AUTO if there is
# one that works) they are compiled and stored in the library. Sets WEFT_HAVE_CUDA, for programs also a compile definition,
# if they are.
#
# weft_cuda_kernels(FILES...)                              .cu files with kernels
# weft_cuda_test(NAME SOURCES... [LABELS l...] [ARGS a...] [ENVIRONMENT e...])
#     a test with the label gpu. It runs on a GPU if there is one, otherwise on the emulated one (tests/emulated), and
#     prints which; in a tree of WEFT_GPU_ONLY it exits 77 where no GPU is. LABELS emulated: it only runs on the emulated
#     one, and has that label instead of gpu
# weft_cuda_test_ways(NAME)    the same test on the simulation (NAME_sim), and over the fabric of one host (NAME_host)
set(WEFT_HAVE_CUDA OFF)
if(NOT WEFT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WEFT_CUDA is '${WEFT_CUDA}': it is AUTO, ON or OFF")
endif()
set(WEFT_CUDA_ARCHITECTURES "" CACHE STRING
  "GPUs that kernels are compiled for: compute capabilities, or native. Empty: those of 80, 90 and 100 that nvcc knows")
set(weft_architectures ${WEFT_CUDA_ARCHITECTURES})

if(NOT WEFT_CUDA STREQUAL "OFF")
  find_program(WEFT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  mark_as_advanced(WEFT_NVCC)
endif()
if(WEFT_NVCC AND NOT WEFT_CUDA STREQUAL "OFF")
  set(weft_nvcc_flags -std=c++17 --fmad=false -ccbin ${CMAKE_C_COMPILER})
  if(NOT weft_architectures) # the toolkits before 12.8 do not know 100
    execute_process(COMMAND ${WEFT_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(architecture 80 90 100)
      if(known MATCHES "compute_${architecture}\n")
        list(APPEND weft_architectures ${architecture})
      endif()
    endforeach()
  endif()
  if(NOT weft_architectures) # an nvcc that does not answer: its error is shown below
    set(weft_architectures 80)
  endif()
  if(weft_architectures STREQUAL "native")
    list(APPEND weft_nvcc_flags -arch=native)
  else()
    foreach(architecture ${weft_architectures})
      list(APPEND weft_nvcc_flags -gencode arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    # PTX of the oldest: a newer driver compiles it for GPUs that are not in the list.
    list(GET weft_architectures 0 oldest)
    list(APPEND weft_nvcc_flags -gencode arch=compute_${oldest},code=compute_${oldest})
  endif()
  # An nvcc that does not work here (an older one with a newer gcc) is none.
  file(WRITE ${CMAKE_BINARY_DIR}/fatbin/try.cu "extern \"C\" __global__ void weft_try(const __grid_constant__ int x) {}\n")
  foreach(compression -compress-mode=size "") # not known to the toolkits before 12.4
    execute_process(COMMAND ${WEFT_NVCC} ${weft_nvcc_flags} ${compression} -fatbin -o try.fatbin try.cu
      WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/fatbin RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed EQUAL 0)
      set(WEFT_HAVE_CUDA ON)
      list(APPEND weft_nvcc_flags ${compression})
      break()
    endif()
  endforeach()
endif()
if(WEFT_CUDA STREQUAL "ON" AND NOT WEFT_HAVE_CUDA)
  message(FATAL_ERROR "WEFT_CUDA=ON, but no nvcc was found that works for the architectures \"${weft_architectures}\": ${said}")
endif()
if(WEFT_HAVE_CUDA)
  message(STATUS "GPU kernels: by ${WEFT_NVCC}, for ${weft_architectures}")
elseif(WEFT_NVCC AND NOT WEFT_CUDA STREQUAL "OFF")
  message(WARNING "GPU kernels: not built, because ${WEFT_NVCC} fails for the architectures \"${weft_architectures}\": ${said}")
else()
  message(STATUS "GPU kernels: not built")
endif()

function(weft_cuda_kernels)
  foreach(file ${ARGN})
    set_property(GLOBAL APPEND PROPERTY weft_cuda_kernels ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

# Once, after all weft_cuda_kernels(). One fatbin of all files, stored in the library by the assembler: a driver looks up a kernel
# in one module, and no lookup fails, which compute-sanitizer would report.
function(weft_cuda_image)
  if(NOT WEFT_HAVE_CUDA)
    target_sources(weft_objects PRIVATE ${PROJECT_SOURCE_DIR}/src/tensor/cuda/image_none.c)
    return()
  endif()
  get_property(files GLOBAL PROPERTY weft_cuda_kernels)
  set(kernels ${CMAKE_BINARY_DIR}/fatbin/kernels)
  list(TRANSFORM files REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE text)
  list(JOIN text "" text)
  file(CONFIGURE OUTPUT ${kernels}.cu CONTENT "${text}" @ONLY)
  add_custom_command(OUTPUT ${kernels}.fatbin
    COMMAND ${WEFT_NVCC} ${weft_nvcc_flags} $<$<BOOL:${WEFT_WERROR}>:-Werror=all-warnings> -I${PROJECT_SOURCE_DIR}/src
      -I${PROJECT_SOURCE_DIR}/include -MD -MF ${kernels}.d -fatbin -o ${kernels}.fatbin ${kernels}.cu
    DEPENDS ${kernels}.cu ${files} DEPFILE ${kernels}.d COMMENT "GPU kernels" COMMAND_EXPAND_LISTS VERBATIM)
  file(CONFIGURE OUTPUT ${kernels}_image.c @ONLY CONTENT "/* Written by CMake. */
#include \"tensor/cuda/image.h\"
const bool wfi_cuda_image_built = true;
__asm__(\".pushsection .rodata\\n.balign 64\\n.globl wfi_cuda_image\\n.hidden wfi_cuda_image\\n\"
        \"wfi_cuda_image:\\n.incbin \\\"${kernels}.fatbin\\\"\\n.popsection\");
")
  target_sources(weft_objects PRIVATE ${kernels}_image.c)
  set_source_files_properties(${kernels}_image.c PROPERTIES OBJECT_DEPENDS ${kernels}.fatbin COMPILE_OPTIONS -fno-lto)
  add_custom_target(gpu_kernels DEPENDS ${kernels}.fatbin)
  add_dependencies(weft_objects gpu_kernels)
endfunction()

function(weft_cuda_test name)
  cmake_parse_arguments(T "" "" "LABELS;ARGS;ENVIRONMENT" ${ARGN})
  weft_test_program(${name} ${T_UNPARSED_ARGUMENTS})
  # The static forms: tools/gpu-check --pack takes the program alone to a GPU machine.
  set_target_properties(${name} PROPERTIES WEFT_WRAPS ON)
  if(WEFT_GPU_ONLY)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  else()
    add_dependencies(${name} emulated_cuda emulated_cublas)
    add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/emulated/run ${CMAKE_BINARY_DIR}/tests/emulated
      $<TARGET_FILE:${name}> ${T_ARGS})
  endif()
  if(NOT emulated IN_LIST T_LABELS)
    list(APPEND T_LABELS gpu)
  endif()
  weft_test_settings(${name} LABELS ${T_LABELS})
  if(T_ENVIRONMENT)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${T_ENVIRONMENT})
  endif()
endfunction()

function(weft_cuda_test_ways name)
  if(WEFT_GPU_ONLY)
    return()
  endif()
  foreach(way sim host)
    add_test(NAME ${name}_${way} COMMAND ${PROJECT_SOURCE_DIR}/tests/emulated/run ${CMAKE_BINARY_DIR}/tests/emulated
      $<TARGET_FILE:${name}>)
    weft_test_settings(${name}_${way} LABELS emulated)
  endforeach()
  set_property(TEST ${name}_sim APPEND PROPERTY ENVIRONMENT EMULATED_GPU=always EMULATED_GPU_HOST=polled)
  set_property(TEST ${name}_host APPEND PROPERTY ENVIRONMENT TEST_FABRIC=host)
endfunction()
