! SPDX-License-Identifier: Apache-2.0
! worker.f90 - the worker in Fortran; see worker.c.
module functions
  use, intrinsic :: iso_fortran_env, only: int64, real64, error_unit
  use weft
  implicit none
contains
  subroutine must(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what
    if (holds) return
    write (error_unit, '(2a)') 'Fortran: not so: ', what
    error stop 1
  end subroutine

  subroutine echo(request) bind(C) ! of a logical, an integer, a real, a text and a vector
    type(weft_call), intent(in) :: request
    type(weft_list) :: out
    logical :: l
    integer(int64) :: i
    real(real64) :: x
    character(:), allocatable :: text
    real(real64), pointer :: v(:)
    call weft_get(request, 1, l)
    call weft_get(request, 2, i)
    call weft_get(request, 3, x)
    call weft_get(request, 4, text)
    call weft_point(request, 5, v)
    call weft_add(out, l)
    call weft_add(out, i)
    call weft_add(out, x)
    call weft_add(out, text)
    call weft_add(out, weft_copy(v))
    call weft_give(request, out)
  end subroutine

  subroutine fail(request) bind(C)
    type(weft_call), intent(in) :: request
    call weft_fail(request, 'never on a Friday')
  end subroutine

  subroutine ramp(request) bind(C)
    type(weft_call), intent(in) :: request
    type(weft_list) :: out
    real(real64), allocatable, target :: x(:)
    integer(int64) :: n, i
    call weft_get(request, 1, n)
    allocate (x(n))
    do i = 1, n
      x(i) = real(i, real64)
    end do
    call weft_add(out, weft_copy(x))
    call weft_give(request, out)
  end subroutine

  subroutine total(request) bind(C)
    type(weft_call), intent(in) :: request
    type(weft_list) :: out, here
    type(weft_rref) :: far
    real(real64), pointer :: x(:)
    integer :: stat
    call weft_point(request, 1, x, stat)
    if (stat /= 0) then
      call weft_get(request, 1, far)
      call weft_to_here(far, here)
      call weft_point(here, 1, x)
    end if
    call weft_add(out, sum(x))
    call weft_give(request, out)
    if (stat == 0) return
    call weft_release(here)
    call weft_release(far)
  end subroutine

  subroutine nothing(request) bind(C)
    type(weft_call), intent(in) :: request
    call must(weft_count(request) == 0, 'no arguments')
  end subroutine
end module

program worker
  use functions
  implicit none
  type(weft_agent) :: agent
  type(weft_group) :: group
  character(16) :: text
  integer :: i, size, me, calls
  call get_environment_variable('CALLS', text, status=i)
  calls = 100
  if (i == 0) read (text, *) calls
  call weft_register('echo', c_funloc(echo))
  call weft_register('fail', c_funloc(fail))
  call weft_register('ramp', c_funloc(ramp))
  call weft_register('total', c_funloc(total))
  call weft_register('nothing', c_funloc(nothing))
  call weft_open(agent)
  size = weft_size(agent)
  me = weft_rank(agent)
  do i = 1, size - 1
    call call_all(mod(me + i, size), mod(me + i + 1, size))
  end do
  call weft_group_open(group, agent, 'all')
  call weft_barrier(group)
  call weft_release(group)
  call weft_serve(agent)
  call weft_close(agent)
  print '(a)', 'Fortran: all is well'

contains

  subroutine call_all(to, next)
    integer, intent(in) :: to, next
    type(weft_list) :: args, got
    type(weft_rref) :: far
    real(real64), allocatable, target :: x(:)
    real(real64), pointer :: y(:)
    real(real64) :: answer
    character(:), allocatable :: word
    character(200) :: why
    integer :: j, stat
    allocate (x(200001))
    x = [(real(j, real64), j=0, 200000)]
    call weft_add(args, .true.)
    call weft_add(args, -huge(0_int64) - 1)
    call weft_add(args, 0.1d0)
    call weft_add(args, 'gr'//char(195)//char(188)//char(195)//char(159))
    call weft_add(args, weft_of(x))
    call weft_rpc_sync(agent, to, 'echo', args, got)
    call weft_get(got, 4, word)
    call weft_point(got, 5, y)
    call must(weft_count(got) == 5 .and. len(word) == 6 .and. all(y == x), 'echo')
    call weft_release(args)
    call weft_release(got)
    call weft_add(args, weft_of(x))
    call weft_rpc_sync(agent, to, 'total', args, got)
    call weft_get(got, 1, answer)
    call must(answer == 20000100000d0, 'total')
    call weft_release(args)
    call weft_release(got)
    call weft_rpc_sync(agent, to, 'fail', stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_REMOTE .and. index(why, 'never on a Friday') > 0, why)
    call weft_add(args, 100)
    call weft_remote(agent, to, 'ramp', args, far)
    call weft_release(args)
    call weft_add(args, far)
    call weft_rpc_sync(agent, next, 'total', args, got)
    call weft_get(got, 1, answer)
    call must(answer == 5050, 'the sum of a reference')
    call weft_release(args)
    call weft_release(got)
    call weft_release(far)
    do j = 1, calls
      call weft_rpc_sync(agent, to, 'nothing')
    end do
  end subroutine
end program
