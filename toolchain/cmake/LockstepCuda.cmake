# Decides whether the GPU's part is built: LOCKSTEP_HAVE_CUDA, and with it the way between several
# GPUs: LOCKSTEP_HAVE_NCCL. AUTO must never fail, ON must never fall back. After this file the
# language CUDA is enabled, or nothing has changed.
set(LOCKSTEP_HAVE_CUDA OFF)
set(LOCKSTEP_HAVE_NCCL OFF)
set(missing "")
if(LOCKSTEP_CUDA STREQUAL "OFF")
    set(missing "LOCKSTEP_CUDA is OFF")
elseif(NOT LOCKSTEP_PROGRAM)
    set(missing "LOCKSTEP_PROGRAM=OFF builds the freestanding core alone")
elseif(LOCKSTEP_SANITIZE OR LOCKSTEP_FUZZ)
    set(missing "nvcc's host code does not go with the sanitizers (the tests run the kernels on \
the processor)")
else()
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
        find_program(LOCKSTEP_NVCC nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
        if(LOCKSTEP_NVCC)
            set(CMAKE_CUDA_COMPILER ${LOCKSTEP_NVCC})
        endif()
    endif()
    # "native", CMake's other way to choose, fails where there is no GPU.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    endif()
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
        set(missing "there is no nvcc that works: install the CUDA toolkit and a C++ compiler, \
or set CUDACXX (and CUDAHOSTCXX)")
    endif()
endif()
if(NOT missing)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
        set(missing "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old, wanted 12.8 or newer")
    elseif(NOT TARGET CUDA::cudart_static)
        set(missing "the toolkit of ${CMAKE_CUDA_COMPILER} has no libcudart_static")
    else()
        # For the fast arithmetic: its headers only, runs that want it load the library.
        find_file(LOCKSTEP_CUBLASLT_H cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
        if(NOT LOCKSTEP_CUBLASLT_H)
            set(missing "the toolkit of ${CMAKE_CUDA_COMPILER} has no cublasLt.h: install cuBLAS's \
headers (libcublas-dev)")
        endif()
    endif()
endif()
if(missing)
    if(LOCKSTEP_CUDA STREQUAL "ON")
        message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but ${missing}")
    endif()
    if(LOCKSTEP_NCCL STREQUAL "ON")
        message(FATAL_ERROR "LOCKSTEP_NCCL=ON, but without CUDA there is no GPU: ${missing}")
    endif()
    message(STATUS "CUDA: not built: ${missing}")
    return()
endif()
set(LOCKSTEP_HAVE_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")

# NCCL's headers only: the library is loaded where several GPUs are used (comm/cuda/nccl.c).
if(NOT LOCKSTEP_NCCL STREQUAL "OFF")
    find_package(NCCL 2.18 QUIET)
    set(LOCKSTEP_HAVE_NCCL ${NCCL_FOUND})
    if(LOCKSTEP_NCCL STREQUAL "ON" AND NOT NCCL_FOUND)
        message(FATAL_ERROR "LOCKSTEP_NCCL=ON wants NCCL 2.18 or newer, found "
                "\"${NCCL_VERSION}\": install libnccl-dev, or say where it is with NCCL_ROOT")
    endif()
    message(STATUS "NCCL: ${NCCL_VERSION}")
endif()

# What keeps the bits, and what keeps code from becoming something else when it is loaded. The
# runtime is linked in: the program starts on machines without it, and without a driver. Nothing is
# left to the C++ library, so that it need not be there.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(LOCKSTEP_CUDA_FLAGS --fmad=false --ftz=false --prec-div=true --prec-sqrt=true
    -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics
    $<$<BOOL:${LOCKSTEP_WERROR}>:--Werror=all-warnings>)
