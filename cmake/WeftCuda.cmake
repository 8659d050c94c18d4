# CUDA, if it is there. Sets WEFT_HAVE_CUDA (also a compile definition).
#
# weft_cuda_sources(FILES... [LIBS cublas|cudnn|nccl...])   files (.c or .cu) that are only built with CUDA
# weft_cuda_test(NAME SOURCES... [TIMEOUT s] [LABELS l...]) a test that is only built with CUDA; it gets the label gpu and
#                                                          exits 77 where no GPU is
#
# The runtime is linked statically, and the driver's libcuda never: a program with CUDA inside starts on a machine without
# a driver and finds no device there.
set(WEFT_HAVE_CUDA OFF)
if(NOT WEFT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WEFT_CUDA is '${WEFT_CUDA}': it is AUTO, ON or OFF")
endif()

if(NOT WEFT_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(WEFT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
    mark_as_advanced(WEFT_NVCC)
    if(WEFT_NVCC)
      set(CMAKE_CUDA_COMPILER ${WEFT_NVCC})
    endif()
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  if(WEFT_CUDA STREQUAL "ON")
    enable_language(CUDA)
  elseif(CMAKE_CUDA_COMPILER)
    include(CheckLanguage)
    check_language(CUDA) # an nvcc that does not work (an older one with a newer gcc) is no CUDA
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.0)
    if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
      set(WEFT_HAVE_CUDA ON)
    elseif(WEFT_CUDA STREQUAL "ON")
      message(FATAL_ERROR "WEFT_CUDA=ON, but no CUDA toolkit >= 12 with a static runtime was found")
    endif()
  endif()
endif()

# cuBLAS is loaded at run time, when it is first needed (src/tensor/cuda/product): here only its header counts.
set(WEFT_HAVE_CUBLAS OFF)
set(weft_map_cuda "") # what it takes of libweft_rpc (cmake/weft_rpc.map.in)
if(WEFT_HAVE_CUDA)
  find_file(WEFT_CUBLAS_HEADER cublas_v2.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  mark_as_advanced(WEFT_CUBLAS_HEADER)
  if(WEFT_CUBLAS_HEADER)
    set(WEFT_HAVE_CUBLAS ON)
    set(weft_map_cuda "\n    wfi_cuda_enter;\n    wfi_cuda_leave;")
    target_compile_definitions(weft_flags INTERFACE WEFT_HAVE_CUBLAS)
  endif()
endif()

if(WEFT_HAVE_CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  target_compile_definitions(weft_flags INTERFACE WEFT_HAVE_CUDA)
  target_link_libraries(weft_rpc_deps INTERFACE CUDA::cudart_static)
  list(APPEND weft_rpc_private_libs -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}, for architectures ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA: not built")
endif()

# cuDNN and NCCL have no targets in CMake's own module.
function(weft_cuda_library name)
  if(TARGET CUDA::${name})
    target_link_libraries(${weft_part}_deps INTERFACE CUDA::${name})
  else()
    find_library(WEFT_${name}_LIBRARY ${name} HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
    target_link_libraries(${weft_part}_deps INTERFACE ${WEFT_${name}_LIBRARY})
  endif()
  set_property(GLOBAL APPEND PROPERTY ${weft_part}_cuda_libraries -l${name})
endfunction()

function(weft_cuda_sources)
  if(NOT WEFT_HAVE_CUDA)
    return()
  endif()
  cmake_parse_arguments(C "" "" "LIBS" ${ARGN})
  weft_sources(${C_UNPARSED_ARGUMENTS})
  set_source_files_properties(${C_UNPARSED_ARGUMENTS} TARGET_DIRECTORY ${weft_part}_objects PROPERTIES
    COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>") # products and sums have the CPU's bits
  if("${C_UNPARSED_ARGUMENTS}" MATCHES "\\.cu(;|$)") # what nvcc makes of them is C++
    set_property(GLOBAL APPEND PROPERTY ${weft_part}_cuda_libraries -lstdc++)
  endif()
  foreach(library ${C_LIBS})
    weft_cuda_library(${library})
  endforeach()
endfunction()

function(weft_cuda_test name)
  if(NOT WEFT_HAVE_CUDA)
    return()
  endif()
  cmake_parse_arguments(T "" "TIMEOUT" "LABELS" ${ARGN})
  weft_test_program(${name} ${T_UNPARSED_ARGUMENTS})
  add_test(NAME ${name} COMMAND ${name})
  weft_test_settings(${name} TIMEOUT ${T_TIMEOUT} LABELS gpu ${T_LABELS})
endfunction()
