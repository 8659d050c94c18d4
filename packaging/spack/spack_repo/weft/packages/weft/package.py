# SPDX-License-Identifier: Apache-2.0
"""The recipe for Spack 1.0 and later. tests/project/spack.py compares it with CMake's files."""
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Weft(CMakePackage, CudaPackage):
    """Remote calls that carry tensors over libfabric, in C: process groups, distributed autograd and parameter servers."""

    # The clone that this recipe lies in. A copy of the recipe elsewhere has to name the repository.
    git = "file://" + os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 6))

    license("Apache-2.0")

    # No version is released yet. A release adds a line: version("X.Y.Z", tag="vX.Y.Z", commit="...")
    version("main", branch="main")

    variant("rpc_only", default=False, description="Only calls, tensors and groups: without oneDNN, OpenBLAS and cJSON")
    variant("pmix", default=True, description="Find rank 0 by PMIx: mpirun of Open MPI, prterun, srun --mpi=pmix")

    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type=("build", "run"))  # the manual pages; weft-trace

    depends_on("libfabric@1.17:")
    depends_on("hwloc@2.4:")
    depends_on("libsodium@1.0.18:")
    depends_on("pmix@3:", when="+pmix")
    with when("~rpc_only"):
        depends_on("onednn@2.6:3")
        depends_on("openblas")
        depends_on("cjson@1.7.13:")
    depends_on("cuda@12:", when="+cuda")

    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch lists the GPUs that kernels are compiled for")

    def cmake_args(self):
        args = [
            self.define_from_variant("WEFT_CUDA", "cuda"),
            self.define_from_variant("WEFT_RPC_ONLY", "rpc_only"),
            self.define_from_variant("WEFT_PMIX", "pmix"),
            self.define("WEFT_TESTS", False),
            self.define("WEFT_EXAMPLES", False),
            self.define("WEFT_PERF", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("WEFT_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
