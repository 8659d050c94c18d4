! SPDX-License-Identifier: Apache-2.0
!
! all.f90 - tests of the Fortran module, as a job of three workers. Rank 1 calls; 0 and 2 serve; all are members of groups.
module handlers
  use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, real32, real64, error_unit
  use weft
  implicit none
contains
  subroutine must(holds, what)
    logical, intent(in) :: holds
    character(*), intent(in) :: what
    if (holds) return
    write (error_unit, '(2a)') 'not so: ', what
    error stop 1
  end subroutine

  ! Gives back scalars and texts.
  subroutine echo(call_) bind(C)
    type(weft_call), intent(in) :: call_
    type(weft_list) :: out
    integer(int64) :: i
    real(real64) :: x
    logical :: l
    character(:), allocatable :: text
    call weft_get(call_, 1, i)
    call weft_get(call_, 2, x)
    call weft_get(call_, 3, l)
    call weft_get(call_, 4, text)
    call weft_add(out, i)
    call weft_add(out, x)
    call weft_add(out, l)
    call weft_add(out, text)
    call weft_give(call_, out)
  end subroutine

  subroutine scale(call_) bind(C)
    type(weft_call), intent(in) :: call_
    real(real64), pointer :: x(:, :)
    real(real64), allocatable, target :: y(:, :)
    real(real64) :: factor
    type(weft_list) :: out
    integer :: stat
    call weft_point(call_, 1, x, stat)
    if (stat /= 0) then
      call weft_fail(call_, 'scale wants a matrix of real64')
      return
    end if
    call weft_get(call_, 2, factor)
    allocate (y, source=factor*x)
    call weft_add(out, weft_copy(y))
    call weft_give(call_, out)
  end subroutine

  ! The one array, whatever its kind and rank, comes back.
  subroutine mirror(call_) bind(C)
    type(weft_call), intent(in) :: call_
    type(weft_list) :: out
    call weft_give_argument(call_, out)
    call weft_give(call_, out)
  contains
    subroutine weft_give_argument(from, to)
      type(weft_call), intent(in) :: from
      type(weft_list), intent(inout) :: to
      real(real32), pointer :: r32(:)
      complex(real64), pointer :: c64(:, :)
      integer(int8), pointer :: i8(:, :, :)
      integer :: stat
      call weft_point(from, 1, r32, stat)
      if (stat == 0) call weft_add(to, weft_copy(r32))
      call weft_point(from, 1, c64, stat)
      if (stat == 0) call weft_add(to, weft_copy(c64))
      call weft_point(from, 1, i8, stat)
      if (stat == 0) call weft_add(to, weft_copy(i8))
      call must(weft_count(to) == 1, 'mirror has one array')
    end subroutine
  end subroutine

  subroutine total(call_) bind(C) ! of the value of a reference
    type(weft_call), intent(in) :: call_
    type(weft_rref) :: ref
    type(weft_list) :: value, out
    real(real64), pointer :: x(:)
    call weft_get(call_, 1, ref)
    call weft_to_here(ref, value)
    call weft_point(value, 1, x)
    call weft_add(out, sum(x))
    call weft_give(call_, out)
    call weft_release(value)
    call weft_release(ref)
  end subroutine

  subroutine ramp(call_) bind(C)
    type(weft_call), intent(in) :: call_
    type(weft_list) :: out
    real(real64), target :: x(4)
    x = [1, 2, 3, 4]
    call weft_add(out, weft_copy(x))
    call weft_give(call_, out)
  end subroutine

  subroutine refuse(call_) bind(C)
    type(weft_call), intent(in) :: call_
    call weft_fail(call_, 'never on a Friday')
  end subroutine

  subroutine die(call_) bind(C)
    type(weft_call), intent(in) :: call_
    call must(weft_from(call_) == 1, 'the caller is rank 1')
    stop 0
  end subroutine
end module

program everything
  use handlers
  use, intrinsic :: iso_c_binding, only: c_bool
  implicit none
  type(weft_agent) :: agent
  character(16) :: how
  integer :: stat
  call get_environment_variable('HOW', how)
  call weft_register('echo', c_funloc(echo))
  call weft_register('scale', c_funloc(scale))
  call weft_register('mirror', c_funloc(mirror))
  call weft_register('total', c_funloc(total))
  call weft_register('ramp', c_funloc(ramp))
  call weft_register('refuse', c_funloc(refuse))
  call weft_register('die', c_funloc(die))
  call weft_open(agent)
  if (how == 'death') then
    if (weft_rank(agent) == 1) call death
    if (weft_rank(agent) /= 1) call weft_serve(agent, stat)
    call weft_stop(agent)
    stop
  end if
  call must(weft_size(agent) == 3 .and. weft_find(agent, 'worker2') == 2 .and. weft_find(agent, 'nobody') == -1, 'the workers')
  call groups
  if (weft_rank(agent) == 1) then
    call scalars
    call arrays
    call sections
    call asynchronous_calls
    call errors
    call references
  end if
  call weft_serve(agent)
  call weft_close(agent)

contains

  subroutine scalars
    type(weft_list) :: args, results
    integer(int64) :: i
    integer(int32) :: j
    real(real64) :: x
    real(real32) :: y
    logical :: l
    character(:), allocatable :: text
    character(200) :: why
    integer :: stat
    call weft_open(agent, stat=stat, errmsg=why)
    call must(stat /= 0 .and. index(why, 'open already') > 0 .and. weft_rank(agent) == 1, why)
    call weft_add(args, huge(i))
    call weft_add(args, 0.1d0)
    call weft_add(args, .true.)
    call weft_add(args, 'blanks at the end  ')
    call weft_rpc_sync(agent, 0, 'echo', args, results)
    call weft_get(results, 1, i)
    call weft_get(results, 2, x)
    call weft_get(results, 3, l)
    call weft_get(results, 4, text)
    call must(i == huge(i) .and. x == 0.1d0 .and. l .and. text == 'blanks at the end  ' .and. len(text) == 19, 'scalars')
    call weft_get(results, 1, j, stat, why)
    call must(stat == WEFT_ERR_TYPE .and. index(why, 'fit') > 0, why)
    call weft_get(results, 2, y)
    call must(abs(y - 0.1) < 1e-6, 'real32')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, 7)
    call weft_add(args, 2.5)
    call weft_add(args, .false.)
    call weft_add(args, '')
    call weft_rpc_sync(agent, 'worker2', 'echo', args, results)
    call weft_get(results, 1, j)
    call weft_get(results, 4, text)
    call must(j == 7 .and. len(text) == 0, 'the second worker')
    call weft_release(args)
    call weft_release(results)
  end subroutine

  subroutine arrays
    type(weft_list) :: args, results
    real(real32), target :: r32(1000), r32_back(1000)
    complex(real64), target :: c64(3, 2), c64_back(3, 2)
    integer(int8), target :: i8(2, 3, 4), i8_back(2, 3, 4)
    real(real32), target :: none(0)
    real(real32), pointer :: some(:)
    integer :: i
    r32 = [(real(i), i=1, 1000)]
    c64 = reshape([((1d0, -1d0)*i, i=1, 6)], [3, 2])
    i8 = reshape([(int(i, int8), i=1, 24)], [2, 3, 4])
    call weft_add(args, weft_of(r32))
    call weft_rpc_sync(agent, 0, 'mirror', args, results)
    call weft_get(results, 1, weft_of(r32_back))
    call must(all(r32 == r32_back), 'real32')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, weft_of(c64))
    call weft_rpc_sync(agent, 2, 'mirror', args, results)
    call weft_get(results, 1, weft_of(c64_back))
    call must(all(c64 == c64_back), 'complex64')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, weft_of(i8))
    call weft_rpc_sync(agent, 0, 'mirror', args, results)
    call weft_get(results, 1, weft_of(i8_back))
    call must(all(i8 == i8_back), 'int8')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, weft_of(none))
    call weft_rpc_sync(agent, 0, 'mirror', args, results)
    call weft_point(results, 1, some)
    call must(size(some) == 0, 'no elements')
    call weft_release(args)
    call weft_release(results)
    call kinds
  end subroutine

  ! Each kind and rank becomes a tensor, and is the same memory.
  subroutine kinds
    type(weft_list) :: list
    real(real32), target :: r0, r7(1, 2, 1, 2, 1, 2, 1)
    real(real64), target :: d4(2, 2, 2, 2)
    integer(int16), target :: s5(1, 1, 1, 1, 2)
    integer(int32), target :: i6(2, 1, 1, 1, 1, 1)
    integer(int64), target :: l1(3)
    logical(c_bool), target :: b2(2, 2)
    complex(real32), target :: c3(1, 2, 3)
    real(real32), pointer :: p0, p7(:, :, :, :, :, :, :)
    real(real64), pointer :: q4(:, :, :, :)
    integer(int16), pointer :: q5(:, :, :, :, :)
    integer(int32), pointer :: q6(:, :, :, :, :, :)
    integer(int64), pointer :: q1(:)
    logical(c_bool), pointer :: q2(:, :)
    complex(real32), pointer :: q3(:, :, :)
    integer :: stat
    r7 = 1
    call weft_add(list, weft_of(r0))
    call weft_add(list, weft_of(r7))
    call weft_add(list, weft_of(d4))
    call weft_add(list, weft_of(s5))
    call weft_add(list, weft_of(i6))
    call weft_add(list, weft_of(l1))
    call weft_add(list, weft_of(b2))
    call weft_add(list, weft_of(c3))
    call weft_point(list, 1, p0)
    call weft_point(list, 2, p7)
    call weft_point(list, 3, q4)
    call weft_point(list, 4, q5)
    call weft_point(list, 5, q6)
    call weft_point(list, 6, q1)
    call weft_point(list, 7, q2)
    call weft_point(list, 8, q3)
    call must(associated(p0, r0) .and. associated(p7, r7) .and. associated(q4, d4) .and. associated(q5, s5), 'the same memory')
    call must(associated(q6, i6) .and. associated(q1, l1) .and. associated(q2, b2) .and. associated(q3, c3), 'the same memory too')
    call weft_point(list, 3, q1, stat)
    call must(stat == WEFT_ERR_TYPE .and. .not. associated(q1), 'another kind is refused')
    call weft_release(list)
  end subroutine

  subroutine sections
    type(weft_list) :: args, results
    real(real64), target :: field(0:9, 0:7)
    real(real64), pointer :: inside(:, :)
    character(200) :: why
    integer :: i, j, stat
    field = reshape([((real(10*j + i, real64), i=0, 9), j=0, 7)], [10, 8])
    call weft_add(args, weft_of(field(1:8, 1:6))) ! without its halo
    call weft_add(args, 2d0)
    call weft_rpc_sync(agent, 0, 'scale', args, results)
    call weft_point(results, 1, inside)
    call must(all(shape(inside) == [8, 6]) .and. all(inside == 2*field(1:8, 1:6)), 'a section')
    field = 0
    call weft_get(results, 1, weft_of(field(1:8, 1:6)))
    call must(all(field(1:8, 1:6) == inside) .and. all(field(0, :) == 0) .and. all(field(:, 7) == 0), 'into a section')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, weft_of(field(::3, ::2)))
    call weft_add(args, 1d0)
    call weft_rpc_sync(agent, 0, 'scale', args, results)
    call weft_point(results, 1, inside)
    call must(all(inside == field(::3, ::2)), 'every third')
    call weft_release(args)
    call weft_release(results)
    call weft_add(args, weft_of(field(9:0:-1, :)), stat, why)
    call must(stat /= 0 .and. index(why, 'negative') > 0, 'backward: '//trim(why))
    call weft_release(args)
  end subroutine

  ! The array changes as soon as the wait has ended, and what is received is there.
  subroutine asynchronous_calls
    integer, parameter :: n = 200000, calls = 20
    real(real32), allocatable, target, asynchronous :: x(:), y(:)
    type(weft_list) :: args, land
    type(weft_future) :: future
    type(weft_list) :: none
    integer :: i
    allocate (x(n), y(n))
    do i = 1, calls
      x = real(i)
      y = 0
      call weft_add(args, weft_of(x))
      call weft_add(land, weft_of(y))
      call weft_rpc_async(agent, mod(i, 2)*2, 'mirror', args, future, land)
      call weft_release(args)
      call weft_release(land)
      call weft_wait(future, none)
      call weft_release(none)
      call weft_release(future)
      x = -1
      call must(all(y == real(i)), 'what was received')
    end do
    call weft_add(args, weft_copy(x*2)) ! an expression
    call weft_rpc_sync(agent, 0, 'mirror', args, none)
    call weft_release(args)
    call weft_release(none)
  end subroutine

  subroutine errors
    type(weft_list) :: args, results
    type(weft_future) :: future
    character(200) :: why
    integer :: stat
    integer(int64) :: i
    call weft_rpc_sync(agent, 0, 'refuse', stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_REMOTE .and. index(why, 'never on a Friday') > 0 .and. index(why, 'refuse on rank 0') > 0, why)
    call weft_rpc_sync(agent, 0, 'no such function', stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_NOT_FOUND, why)
    call weft_rpc_sync(agent, 'nobody', 'echo', stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_NOT_FOUND, why)
    call weft_add(args, 1)
    call weft_rpc_async(agent, 2, 'scale', args, future)
    call weft_wait(future, stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_REMOTE .and. weft_test(future) .and. index(why, 'matrix') > 0, why)
    call weft_release(future)
    call weft_get(args, 2, i, stat, why)
    call must(stat == WEFT_ERR_NOT_FOUND .and. index(why, 'value 2') > 0, why)
    call weft_release(args)
    call weft_add(args, 'text')
    call weft_get(args, 1, i, stat, why)
    call must(stat == WEFT_ERR_TYPE .and. index(why, 'string') > 0, why)
    call weft_release(args)
    call weft_rpc_sync(agent, 0, 'ramp', results=results)
    call must(weft_count(results) == 1, 'no arguments')
    call weft_release(results)
  end subroutine

  subroutine references
    type(weft_rref) :: far, own
    type(weft_list) :: list, results
    real(real64), pointer :: x(:)
    real(real64) :: value
    call weft_remote(agent, 0, 'ramp', rref=far)
    call must(weft_owner(far) == 0, 'the owner')
    call weft_to_here(far, list)
    call weft_point(list, 1, x)
    call must(all(x == [1, 2, 3, 4]), 'to here')
    call weft_release(list)
    call weft_add(list, far)
    call weft_rpc_sync(agent, 2, 'total', list, results)
    call weft_get(results, 1, value)
    call must(value == 10, 'a reference as an argument')
    call weft_release(list)
    call weft_release(results)
    call weft_rref_rpc_sync(far, 'total', results=results)
    call weft_get(results, 1, value)
    call must(value == 10, 'a call to the owner')
    call weft_release(results)
    call weft_add(list, 5)
    call weft_rref_create(agent, list, own)
    call weft_release(list)
    call must(weft_owner(own) == 1, 'own')
    call weft_release(own)
    call weft_release(far)
  end subroutine

  subroutine groups
    type(weft_group) :: group
    type(weft_future) :: future
    type(weft_list) :: mine, everybody, one
    real(real64), target, asynchronous :: x(2, 2), out(2, 3), part(2), six(6)
    integer(int32), target :: i(3), j(3)
    integer :: me, stat, rank
    character(200) :: why
    call weft_group_open(group, agent, 'all')
    me = weft_group_index(group)
    call must(weft_group_size(group) == 3 .and. me == weft_rank(agent), 'the group')
    call weft_barrier(group)
    x = me + 1
    call weft_allreduce(group, weft_of(x))
    call must(all(x == 6), 'allreduce')
    x = me + 1
    call weft_allreduce(group, weft_of(x(:, 1)), 'max', future=future)
    call weft_wait(future)
    call weft_release(future)
    call must(all(x(:, 1) == 3) .and. all(x(:, 2) == me + 1), 'allreduce of a section')
    x = me
    call weft_reduce(group, weft_of(x), 2, 'sum')
    call must(me /= 2 .or. all(x == 3), 'reduce')
    i = me
    call weft_broadcast(group, weft_of(i), 1)
    call must(all(i == 1), 'broadcast')
    part = me
    call weft_allgather(group, weft_of(part), weft_of(out))
    call must(all(out(:, 1) == 0) .and. all(out(:, 3) == 2), 'allgather')
    out = -1
    if (me == 0) then
      call weft_gather(group, weft_of(part), weft_of(out), root=0)
      call must(all(out(:, 2) == 1), 'gather')
    else
      call weft_gather(group, weft_of(part), root=0)
    end if
    six = [1, 2, 3, 4, 5, 6]
    if (me == 1) then
      call weft_scatter(group, weft_of(six), weft_of(part), 1)
    else
      call weft_scatter(group, out=weft_of(part), root=1)
    end if
    call must(all(part == [2*me + 1, 2*me + 2]), 'scatter')
    call weft_reduce_scatter(group, weft_of(six), weft_of(part), 'sum')
    call must(all(part == 3*[2*me + 1, 2*me + 2]), 'reduce_scatter')
    i = me
    call weft_all_to_all(group, weft_of(i), weft_of(j))
    call must(all(j == [0, 1, 2]), 'all_to_all')
    if (me == 0) call weft_send(group, weft_of(i), 2)
    if (me == 2) call weft_recv(group, weft_of(j), 0)
    call must(me /= 2 .or. all(j == 0), 'send and recv')
    call weft_add(mine, me)
    call weft_add(mine, 'of rank')
    call weft_allgather_values(group, mine, everybody)
    call weft_get(everybody, 3, one)
    call weft_get(one, 1, rank)
    call must(weft_count(everybody) == 3 .and. rank == 2, 'allgather_values')
    call weft_release(mine)
    call weft_release(everybody)
    call weft_release(one)
    call weft_allreduce(group, weft_of(x), 'median', stat=stat, errmsg=why)
    call must(stat /= 0, 'no such reduction')
    call weft_barrier(group)
    call weft_release(group)
  end subroutine

  subroutine death
    integer :: stat
    character(200) :: why
    call weft_rpc_sync(agent, 2, 'die', stat=stat, errmsg=why)
    call must(stat == WEFT_ERR_PEER_DEAD .or. stat == WEFT_ERR_PEER_LEFT, why)
    print '(a)', 'the call of the dead worker failed'
  end subroutine
end program
