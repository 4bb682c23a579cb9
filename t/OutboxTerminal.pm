# OutboxTerminal.pm
#
# A program on a terminal: runs it on a pseudo terminal, keeps the screen that it
# draws (what ncurses sends to an xterm), types keys, changes the size.
#
#   my $terminal = OutboxTerminal->start([ 'outbox-top', ... ], columns => 80, rows => 24);
#   ok($terminal->wait_screen(qr/Types/), 'drawn');
#   $terminal->type('q');
#   is($terminal->finish, 0, 'exit code');

use strict;
use warnings;

package OutboxTerminal;

use Carp;
use Encode qw(decode);
use IO::Pty;
use IO::Select;
use POSIX qw(:sys_wait_h :termios_h);
use Time::HiRes qw(time);

# Options: columns, rows, term (default xterm-256color), locale (default C.UTF-8).
sub start
{
	my ($class, $command, %opt) = @_;
	my $pty = IO::Pty->new or croak "no pseudo terminal: $!";
	my $self = bless { pty => $pty, columns => 80, rows => 24, raw => '', unread => '', %opt }, $class;

	$self->{slave} = $pty->slave;
	$self->{slave}->set_winsize($self->{rows}, $self->{columns}, 0, 0);
	$self->{modes} = $self->modes;
	$self->_clear;
	$self->{pid} = fork() // croak "could not fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM HUP QUIT TSTP);
		$pty->make_slave_controlling_terminal();
		open(STDIN, '<&', $self->{slave});
		open(STDOUT, '>&', $self->{slave});
		open(STDERR, '>&', $self->{slave});
		close($pty);
		$ENV{TERM} = $self->{term} // 'xterm-256color';
		$ENV{LC_ALL} = $self->{locale} // 'C.UTF-8';
		delete @ENV{qw(COLUMNS LINES)};
		exec(@$command) or POSIX::_exit(127);
	}
	return $self;
}

sub pid { return $_[0]->{pid} }

# All bytes that the program has sent.
sub raw { return $_[0]->{raw} }

# The modes of the terminal, to be compared.
sub modes
{
	my ($self) = @_;
	my $termios = POSIX::Termios->new;

	$termios->getattr(fileno($self->{slave}));
	return join(' ', $termios->getiflag, $termios->getoflag, $termios->getlflag);
}

# Whether they are as at the start, and the screen and the cursor as well.
sub restored
{
	my ($self) = @_;

	return $self->modes eq $self->{modes} && !$self->{alternate} && !$self->{hidden};
}

sub _clear
{
	my ($self) = @_;

	$self->{screen} = [ map { [ (' ') x $self->{columns} ] } 1 .. $self->{rows} ];
	@$self{qw(x y top bottom)} = (0, 0, 0, $self->{rows} - 1);
	return;
}

# The terminal gets another size; the program hears of it by SIGWINCH.
sub resize
{
	my ($self, $columns, $rows) = @_;

	@$self{qw(columns rows)} = ($columns, $rows);
	$self->_clear;
	$self->{slave}->set_winsize($rows, $columns, 0, 0);
	return;
}

sub type
{
	my ($self, $keys) = @_;
	my %named = (up => "\eOA", down => "\eOB", right => "\eOC", left => "\eOD", page_down => "\e[6~", page_up => "\e[5~", home => "\eOH", end => "\eOF",
		enter => "\r", escape => "\e");

	syswrite($self->{pty}, $named{$keys} // $keys);
	return;
}

sub screen { return join("\n", map { my $line = join('', @$_); $line =~ s/\s+$//; $line } @{ $_[0]->{screen} }) }
sub lines { return split(/\n/, $_[0]->screen, -1) }

# Reads what the program sends until the screen matches; the timeout is in seconds.
sub wait_screen
{
	my ($self, $pattern, $timeout) = @_;
	my $end = time() + ($timeout // 60);

	while (1)
	{
		return 1 if $self->screen =~ $pattern;
		return 0 if time() > $end || !$self->_read(0.2);
	}
}

# Until nothing has come for a moment.
sub settle
{
	my ($self) = @_;
	my $had;

	do
	{
		$had = length($self->{raw});
		$self->_read(0.15);
	} while (length($self->{raw}) > $had);
	return;
}

# False at the end of the program's output.
sub _read
{
	my ($self, $seconds) = @_;
	my $bytes;

	return 1 unless IO::Select->new($self->{pty})->can_read($seconds);
	return 0 unless sysread($self->{pty}, $bytes, 65536);
	$self->{raw} .= $bytes;
	$self->{unread} .= $bytes;
	$self->_draw;
	return 1;
}

# Waits for the end: the exit code, or -signal, or undef if it doesn't end.
sub finish
{
	my ($self, $timeout) = @_;
	my $end = time() + ($timeout // 60);

	while (time() < $end)
	{
		# our own end of the slave keeps the pty open: no end of file
		$self->_read(0.05);
		next if waitpid($self->{pid}, WNOHANG) == 0;
		my $status = $?;
		$self->_read(0.05) foreach 1 .. 3;
		$self->{pid} = undef;
		return $status & 127 ? -($status & 127) : $status >> 8;
	}
	return undef;
}

sub DESTROY
{
	my ($self) = @_;

	local ($?, $!);
	return unless defined $self->{pid};
	kill('KILL', $self->{pid});
	waitpid($self->{pid}, 0);
	return;
}

# ---- the terminal itself

sub _scroll
{
	my ($self, $from, $to, $by) = @_;
	my $screen = $self->{screen};

	foreach (1 .. abs($by))
	{
		if ($by > 0) { splice(@$screen, $from, 1); splice(@$screen, $to, 0, [ (' ') x $self->{columns} ]) }
		else { splice(@$screen, $to, 1); splice(@$screen, $from, 0, [ (' ') x $self->{columns} ]) }
	}
	return;
}

sub _put
{
	my ($self, $c) = @_;

	if ($self->{x} >= $self->{columns})
	{
		# beyond the edge: a real one would wrap; no line of ours may come here
		$self->{overflow}++;
		return;
	}
	$self->{screen}[ $self->{y} ][ $self->{x}++ ] = $c;
	$self->{last} = $c;
	return;
}

sub _line_feed
{
	my ($self) = @_;

	if ($self->{y} == $self->{bottom}) { $self->_scroll($self->{top}, $self->{bottom}, 1) }
	elsif ($self->{y} < $self->{rows} - 1) { $self->{y}++ }
	return;
}

sub _erase
{
	my ($self, $y, $from, $to) = @_;

	$self->{screen}[$y][$_] = ' ' foreach $from .. $to;
	return;
}

sub _control
{
	my ($self, $private, $text, $final) = @_;
	my @n = split(/;/, $text);
	my $n = $n[0] || 1;
	my ($w, $h) = @$self{qw(columns rows)};
	my $row = $self->{screen}[ $self->{y} ];

	if ($private)
	{
		$self->{alternate} = $final eq 'h' if $text =~ /1049/;
		$self->{hidden} = $final eq 'l' if $text =~ /(?:^|;)25(?:;|$)/;
		$self->_clear if $text =~ /1049/;
		return;
	}
	if ($final =~ /^[Hf]$/) { @$self{qw(y x)} = (($n[0] || 1) - 1, ($n[1] || 1) - 1) }
	elsif ($final eq 'A') { $self->{y} -= $n }
	elsif ($final eq 'B') { $self->{y} += $n }
	elsif ($final eq 'C') { $self->{x} += $n }
	elsif ($final eq 'D') { $self->{x} -= $n }
	elsif ($final eq 'G') { $self->{x} = $n - 1 }
	elsif ($final eq 'd') { $self->{y} = $n - 1 }
	elsif ($final eq 'J')
	{
		my $mode = $n[0] || 0;
		$self->_erase($self->{y}, $mode == 0 ? $self->{x} : 0, $mode == 1 ? $self->{x} : $w - 1);
		$self->_erase($_, 0, $w - 1) foreach $mode == 2 ? 0 .. $h - 1 : $mode == 0 ? $self->{y} + 1 .. $h - 1 : 0 .. $self->{y} - 1;
	}
	elsif ($final eq 'K') { $self->_erase($self->{y}, ($n[0] || 0) == 0 ? $self->{x} : 0, ($n[0] || 0) == 1 ? $self->{x} : $w - 1) }
	elsif ($final eq 'X') { $self->_erase($self->{y}, $self->{x}, $self->{x} + $n - 1) }
	elsif ($final eq 'P') { splice(@$row, $self->{x}, $n); push(@$row, (' ') x ($w - @$row)) }
	elsif ($final eq '@') { splice(@$row, $self->{x}, 0, (' ') x $n); splice(@$row, $w) }
	elsif ($final eq 'L') { $self->_scroll($self->{y}, $self->{bottom}, -$n) }
	elsif ($final eq 'M') { $self->_scroll($self->{y}, $self->{bottom}, $n) }
	elsif ($final eq 'S') { $self->_scroll($self->{top}, $self->{bottom}, $n) }
	elsif ($final eq 'T') { $self->_scroll($self->{top}, $self->{bottom}, -$n) }
	elsif ($final eq 'b') { my $c = $self->{last}; $self->_put($c) foreach 1 .. $n }
	elsif ($final eq 'r') { @$self{qw(top bottom x y)} = (($n[0] || 1) - 1, ($n[1] || $h) - 1, 0, 0) }
	elsif ($final !~ /^[mlhtn]$/) { croak "the terminal doesn't know \"CSI $text $final\"" }
	return;
}

# Draws what is complete of the bytes that have come.
sub _draw
{
	my ($self) = @_;

	while (length($self->{unread}))
	{
		if ($self->{unread} =~ s/^\e\[([?>]?)([\d;]*)([ -\/]*)([\@-~])//) { $self->_control($1, $2, $4) }
		elsif ($self->{unread} =~ s/^\e[()][AB012]//) { }
		elsif ($self->{unread} =~ s/^\eM//) { $self->{y} == $self->{top} ? $self->_scroll($self->{top}, $self->{bottom}, -1) : $self->{y}-- }
		elsif ($self->{unread} =~ s/^\e[=>78]//) { }
		elsif ($self->{unread} =~ s/^\r//) { $self->{x} = 0 }
		elsif ($self->{unread} =~ s/^\n//) { $self->_line_feed }
		elsif ($self->{unread} =~ s/^\x08//) { $self->{x}-- if $self->{x} > 0 }
		elsif ($self->{unread} =~ s/^\t//) { $self->{x} = 8 * (int($self->{x} / 8) + 1) }
		elsif ($self->{unread} =~ s/^[\x07\x0e\x0f]//) { }
		elsif ($self->{unread} =~ s/^([\x20-\x7e])//) { $self->_put($1) }
		elsif ($self->{unread} =~ s/^([\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})//) { $self->_put(decode('UTF-8', $1)) }
		elsif ($self->{unread} =~ /^(?:\e.{0,30}|[\xc2-\xf4][\x80-\xbf]{0,2})$/s) { return }
		else { croak sprintf('the terminal doesn\'t know byte %02x', ord($self->{unread})) }
	}
	return;
}

1;
