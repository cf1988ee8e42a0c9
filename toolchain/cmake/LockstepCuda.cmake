# Decides whether CUDA kernels are built. AUTO must never fail, ON must never fall back.
if(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "LOCKSTEP_CUDA is \"${LOCKSTEP_CUDA}\", wanted AUTO, ON or OFF")
elseif(LOCKSTEP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but there are no CUDA kernels in version "
            "${PROJECT_VERSION}: configure with -DLOCKSTEP_CUDA=AUTO or OFF")
elseif(LOCKSTEP_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no CUDA kernels in this version")
endif()
