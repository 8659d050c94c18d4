! SPDX-License-Identifier: Apache-2.0
! hello.f90 - rank 1 sends an array to rank 0, which answers with its sum: weft-run -n 2 ./hello_f
module functions
  use weft
  implicit none
contains
  subroutine total(request) bind(C) ! runs on rank 0, once for each call
    type(weft_call), intent(in) :: request
    real(8), pointer :: x(:)
    type(weft_list) :: results
    character(200) :: why
    integer :: stat
    call weft_point(request, 1, x, stat, why) ! the memory that arrived
    if (stat == 0) then
      call weft_add(results, sum(x))
      call weft_give(request, results)
    else
      call weft_fail(request, why) ! the caller gets this error
    end if
  end subroutine
end module

program hello
  use weft
  use functions
  implicit none
  type(weft_agent) :: agent
  type(weft_list) :: arguments, results
  real(8), allocatable, target :: numbers(:)
  real(8) :: answer
  integer :: i
  call weft_register('total', c_funloc(total))
  call weft_open(agent) ! rank and size come from weft-run, mpirun or srun
  if (weft_rank(agent) == 1) then
    numbers = [(real(i, 8), i=0, 999999)]
    call weft_add(arguments, weft_of(numbers))
    call weft_rpc_sync(agent, 0, 'total', arguments, results)
    call weft_get(results, 1, answer)
    print '(a, i0, a, i0)', 'rank 1: the sum of ', size(numbers), ' numbers is ', nint(answer, 8)
    call weft_release(arguments)
    call weft_release(results)
  end if
  call weft_serve(agent) ! until all workers are done
  call weft_close(agent)
end program
