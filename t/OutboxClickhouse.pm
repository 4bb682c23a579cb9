# OutboxClickhouse.pm
#
# A private clickhouse-server, with a user "archive" who has a password, and the
# table of docs/archive.md.
#
#   my $clickhouse = OutboxClickhouse->start;
#   $clickhouse->query('SELECT count() FROM outbox_events FINAL');
#   $clickhouse->kill9; $clickhouse->restart; $clickhouse->freeze; $clickhouse->thaw;

use strict;
use warnings;

package OutboxClickhouse;

use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use HTTP::Tiny;
use OutboxTest;
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(sleep);

my $owner = $$;
my @servers;

# Whether there is a clickhouse-server to start; CLICKHOUSE_SERVER names one in another place.
sub find
{
	foreach my $path ($ENV{CLICKHOUSE_SERVER} // (), map { "$_/clickhouse-server" } split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/usr/local/bin')
	{
		return $path if -x $path;
	}
	return undef;
}

sub start
{
	my ($class) = @_;
	my $self = bless { password => 'S3cret/p@ss', dir => PostgreSQL::Test::Utils::tempdir('clickhouse') }, $class;

	$self->{port} = PostgreSQL::Test::Cluster::get_free_port();
	$self->{tcp_port} = PostgreSQL::Test::Cluster::get_free_port();
	$self->_write_config;
	push @servers, $self;
	$self->restart;
	$self->query($self->definition);
	return $self;
}

sub _write_config
{
	my ($self) = @_;

	append_to_file("$self->{dir}/config.xml", <<"XML");
<yandex>
  <logger><level>information</level><log>$self->{dir}/log</log><errorlog>$self->{dir}/errors</errorlog></logger>
  <listen_host>127.0.0.1</listen_host>
  <http_port>$self->{port}</http_port>
  <tcp_port>$self->{tcp_port}</tcp_port>
  <path>$self->{dir}/data/</path>
  <tmp_path>$self->{dir}/tmp/</tmp_path>
  <users_config>users.xml</users_config>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
  <mark_cache_size>5368709</mark_cache_size>
  <timezone>UTC</timezone>
</yandex>
XML
	append_to_file("$self->{dir}/users.xml", <<"XML");
<yandex>
  <profiles><default><max_memory_usage>500000000</max_memory_usage></default></profiles>
  <users>
    <default><password>test</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default>
    <archive><password>$self->{password}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></archive>
  </users>
  <quotas><default></default></quotas>
</yandex>
XML
	return;
}

# The CREATE TABLE in docs/archive.md, so that it is what the tests use.
sub definition
{
	my $docs = slurp_file(abs_path(dirname(__FILE__) . '/../docs/archive.md'));
	my ($definition) = $docs =~ /^(CREATE TABLE outbox_events.*?;)$/ms;

	croak 'docs/archive.md defines no table' unless defined $definition;
	return $definition =~ s/;$//r;
}

# For outbox.archive_url; password and table may be others.
sub url
{
	my ($self, %opt) = @_;
	my $password = ($opt{password} // $self->{password}) =~ s/([^A-Za-z0-9_.~-])/sprintf('%%%02X', ord($1))/ger;

	return "http://archive:$password\@127.0.0.1:" . ($opt{port} // $self->{port}) . '/' . ($opt{table} // 'outbox_events');
}

sub _ask
{
	my ($self, $query) = @_;

	return HTTP::Tiny->new(timeout => 60)->post("http://127.0.0.1:$self->{port}/",
		{ content => $query, headers => { 'X-ClickHouse-User' => 'default', 'X-ClickHouse-Key' => 'test' } });
}

# The answer, without the newline at its end; dies of an error.
sub query
{
	my ($self, $query) = @_;
	my $response = $self->_ask($query);

	croak "ClickHouse: $response->{status} $response->{content}" unless $response->{success};
	return $response->{content} =~ s/\n$//r;
}

sub restart
{
	my ($self) = @_;
	my $program = find() // croak 'no clickhouse-server';

	$self->{pid} = fork() // croak "could not fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM);
		OutboxNats::_die_with_parent();
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>>', "$self->{dir}/output");
		open(STDERR, '>&', \*STDOUT);
		exec($program, "--config-file=$self->{dir}/config.xml") or POSIX::_exit(127);
	}
	wait_until(120, sub { croak "clickhouse-server ended at its start, see $self->{dir}" if waitpid($self->{pid}, WNOHANG) != 0; $self->_ask('SELECT 1')->{success} })
	  or croak "clickhouse-server does not answer, see $self->{dir}";
	return;
}

sub kill9
{
	my ($self) = @_;

	kill('KILL', $self->{pid});
	waitpid($self->{pid}, 0);
	$self->{pid} = undef;
	return;
}

sub freeze { kill('STOP', $_[0]->{pid}); return }
sub thaw { kill('CONT', $_[0]->{pid}); return }

END
{
	# a forked child that ends must not take the servers along
	if ($$ == $owner)
	{
		local $?;
		$_->kill9 foreach grep { defined $_->{pid} } @servers;
	}
}

1;
