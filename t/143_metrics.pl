# The queries, alert rules and dashboard in monitoring/, with the real exporter
# and a real Prometheus: every metric has a value, every query of the dashboard
# answers, an alert fires when events are stuck.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use HTTP::Tiny;
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

foreach my $program ('prometheus', 'promtool', 'prometheus-postgres-exporter', 'prometheus-sql-exporter')
{
	plan skip_all => "$program is not installed" unless grep { -x "$_/$program" } split(/:/, $ENV{PATH});
}

my $db = 'postgres';
my $monitoring = abs_path(dirname(__FILE__) . '/..') . '/monitoring';
my $nats = OutboxNats->start(max_payload => 4096);
my $node = new_cluster('main', nats => $nats, extra => "listen_addresses = '127.0.0.1'\noutbox.retry_max_delay = 200ms\n");
my $dir = PostgreSQL::Test::Utils::tempdir('prometheus');
my $exporter_port = PostgreSQL::Test::Cluster::get_free_port();
my $prometheus_port = PostgreSQL::Test::Cluster::get_free_port();
my @pids;
my $owner = $$;

sub launch
{
	my ($log, @command) = @_;
	my $pid = fork() // die "could not fork: $!";

	if ($pid == 0)
	{
		OutboxNats::_die_with_parent();
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>>', $log);
		open(STDERR, '>&', \*STDOUT);
		exec(@command) or POSIX::_exit(127);
	}
	push @pids, $pid;
	return $pid;
}

END
{
	if (defined $owner && $$ == $owner)
	{
		local $?;
		kill('KILL', @pids);
		waitpid($_, 0) foreach @pids;
	}
}

sub get
{
	my ($port, $path) = @_;
	my $response = HTTP::Tiny->new(timeout => 30)->get("http://127.0.0.1:$port/$path");

	return $response->{success} ? $response->{content} : "status $response->{status}: $response->{content}";
}

# The result of a query to Prometheus, a list; undef and a message if it has none.
sub ask
{
	my ($expr) = @_;
	my $text = get($prometheus_port, 'api/v1/query?query=' . HTTP::Tiny->new->_uri_escape($expr));
	my $answer = eval { decode_json($text) };

	return $answer->{data}{result} if $answer && $answer->{status} eq 'success';
	diag("$expr: $text");
	return undef;
}

# --- something of everything: published, refused, late
$node->safe_psql($db, q{CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher});
$node->safe_psql($db, q{SELECT outbox.enqueue('order', i::text, 'placed', '{}') FROM generate_series(1, 50) i});
$node->safe_psql($db, q{SELECT outbox.enqueue_text('big', '1', 'x', repeat('x', 9000))});
$node->safe_psql($db, q{CREATE FUNCTION handle(m outbox.message) RETURNS void BEGIN ATOMIC SELECT; END; SELECT outbox.subscribe('OUTBOX', 'metrics', 'public.handle')});
ok(wait_published($node, $db), 'published');
ok(wait_for_query($node, $db, 'SELECT applied = 50 FROM outbox.subscriptions'), 'and handled');

my $host = $node->host;
$ENV{DATA_SOURCE_NAME} = "user=watcher host=$host port=" . $node->port . " dbname=$db sslmode=disable";
launch("$dir/exporter.log", 'prometheus-postgres-exporter', "--web.listen-address=127.0.0.1:$exporter_port",
	"--extend.query-path=$monitoring/postgres-exporter.yml", '--disable-default-metrics', '--disable-settings-metrics');
my $metrics = '';
wait_until(60, sub { ($metrics = get($exporter_port, 'metrics')) =~ /^outbox_health_status/m })
  || diag($metrics, slurp_file("$dir/exporter.log"));

# every metric that the file promises, with # HELP, # TYPE and a value; errors of queries would show in the log
my $yaml = slurp_file("$monitoring/postgres-exporter.yml");
my $namespace;
foreach my $line (split(/\n/, $yaml))
{
	$namespace = $1 if $line =~ /^(\w+):$/;
	next unless $line =~ /^\s+- (\w+): \{usage: "(GAUGE|COUNTER|HISTOGRAM)"/;
	my $name = "${namespace}_$1";
	my $sample = $2 eq 'HISTOGRAM' ? "${name}_bucket" : $name;

	like($metrics, qr/^\Q$sample\E\{.*datname="postgres".*\} [0-9.e+]+$/m, "$name has a value");
	like($name, $2 eq 'COUNTER' ? qr/_total$/ : qr/^(?!.*_total$)/, 'and is named as a ' . lc($2));
}
like($metrics, qr/^outbox_stream_published_events_total\{.*stream="OUTBOX".*\} 50$/m, 'what was published is counted');
like($metrics, qr/^outbox_subscription_applied_messages_total\{.*durable="metrics".*\} 50$/m, 'and handled');
like($metrics, qr/^outbox_aggregate_type_dead_letters_total\{aggregate_type="big".*\} 1$/m, 'and what was refused');
like($metrics, qr/^outbox_latency_seconds_count\{.*stage="ack_to_settle"\} 50$/m, 'and timed');
unlike(slurp_file("$dir/exporter.log"), qr/level=error.*outbox/, 'no query failed');

# --- the other exporter: the same names and values, after its prefix
my $sql_port = PostgreSQL::Test::Cluster::get_free_port();
my $sql_config = slurp_file("$monitoring/sql-exporter.yml");
my $sql_metrics = '';
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->reload;
$sql_config =~ s{postgres://\S+}{postgres://watcher\@127.0.0.1:@{[$node->port]}/$db?sslmode=disable};
append_to_file("$dir/sql-exporter.yml", $sql_config);
{
	local $ENV{CONFIG} = "$dir/sql-exporter.yml";

	launch("$dir/sql-exporter.log", 'prometheus-sql-exporter', '-config.file', "$dir/sql-exporter.yml", '-web.listen-address', "127.0.0.1:$sql_port");
}
wait_until(60, sub { ($sql_metrics = get($sql_port, 'metrics')) =~ /^sql_outbox_latency_quantile_seconds/m }) || diag(slurp_file("$dir/sql-exporter.log"));
foreach my $name ($sql_config =~ /- name: (outbox_\w+)/g)
{
	like($sql_metrics, qr/^sql_$name\{.*datname="postgres".*\} [0-9.e+-]+$/m, "sql-exporter has $name");
}
like($sql_metrics, qr/^sql_outbox_stream_published_events_total\{.*stream="OUTBOX".*\} 50$/m, 'with its value');

# --- Prometheus, with rules that don't wait
my $rules = slurp_file("$monitoring/prometheus-rules.yml");
my ($out, $err) = run_command([ 'promtool', 'check', 'rules', "$monitoring/prometheus-rules.yml" ]);
like("$out$err", qr/SUCCESS: 5 rules found/, 'promtool accepts the rules');
$rules =~ s/for: \d+m/for: 0s/g;
append_to_file("$dir/rules.yml", $rules);
append_to_file("$dir/prometheus.yml", <<"EOC");
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$dir/rules.yml"]
scrape_configs:
  - job_name: postgres
    static_configs: [{targets: ["127.0.0.1:$exporter_port"]}]
EOC
launch("$dir/prometheus.log", 'prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/data",
	"--web.listen-address=127.0.0.1:$prometheus_port");
ok(wait_until(60, sub { get($prometheus_port, '-/ready') =~ /Ready/ && @{ ask('outbox_health_status') // [] } > 0 }), 'Prometheus has the metrics')
  || diag(slurp_file("$dir/prometheus.log"));

# --- the dashboard: each query answers; rates need two scrapes and a new event in between
ok(wait_until(60, sub {
	$node->safe_psql($db, q{SELECT outbox.enqueue('order', 'more', 'placed', '{}')});
	my $rate = ask('rate(outbox_stream_published_events_total[1m]) > 0');
	return $rate && @$rate > 0;
}), 'rates are computed');
my $dashboard = decode_json(slurp_file("$monitoring/grafana.json"));
my $queries = 0;
foreach my $target (map { @{ $_->{targets} } } @{ $dashboard->{panels} })
{
	my $expr = $target->{expr};

	$expr =~ s/\$datname/.*/g;
	$expr =~ s/\$__rate_interval/1m/g;
	my $result = ask($expr);
	ok($result && @$result > 0, "the dashboard's $target->{expr}");
	$queries++;
}
cmp_ok($queries, '>=', 15, 'the dashboard has queries');

# --- alerts
sub alerts
{
	my $answer = eval { decode_json(get($prometheus_port, 'api/v1/alerts')) } // {};

	return map { $_->{labels}{alertname} } grep { $_->{state} eq 'firing' } @{ $answer->{data}{alerts} // [] };
}
ok(wait_until(60, sub { grep { $_ eq 'OutboxWarning' } alerts() }), 'a dead letter: a warning fires');
ok(!(grep { $_ eq 'OutboxStuck' } alerts()), 'and nothing is stuck');
$nats->stop;
ok(wait_until(60, sub { grep { $_ eq 'OutboxStuck' } alerts() }), 'without a broker, OutboxStuck fires');
$nats->restart;
ok(wait_until(60, sub { !grep { $_ eq 'OutboxStuck' } alerts() }), 'and is over with it');

check_no_crash($node);
done_testing();
