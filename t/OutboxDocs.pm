# OutboxDocs.pm
#
# Markdown as the tests of the documentation see it: blocks of code with what
# HTML comments before them say, headings with their anchors, links.
#
# A block of SQL is an example that is run, in the order of its file, in a database of
# its own. A comment before a block says what it can't say itself:
#
#   <!-- example: setup                 SQL that is run before, up to the end of the comment
#   CREATE TABLE orders (...);
#   -->
#   <!-- example: database billing -->  in this database; by default in one for the file, named as the file
#   <!-- example: new database x -->    in this one, which is made without the extension
#   <!-- example: until SELECT ... -->  afterwards this query yields t, soon
#   <!-- example: directory /x/y -->    a directory of the test's stands for this one
#   <!-- example: fails 23000 -->       its last statement fails with this SQLSTATE
#   <!-- example: not run: why -->      isn't run

package OutboxDocs;

use strict;
use warnings;

use Exporter 'import';
use OutboxNode;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(pages page_text blocks headings links anchor);

# README.md, docs/*.md and what else is documentation, relative to the checkout.
sub pages
{
	my $root = checkout();

	return map { s{^\Q$root\E/}{}r } grep { -e } "$root/README.md", sort(glob("$root/docs/*.md")), sort(glob("$root/examples/*.md")), sort(glob("$root/bench/*.md $root/bench/*/*.md"));
}

sub page_text { return slurp_file(checkout() . "/$_[0]") }

# The blocks of code of a page, in order: { line, language, text, directives => [ [word, rest], ... ] }.
sub blocks
{
	my ($page) = @_;
	my (@blocks, @directives, $block, $comment);
	my $number = 0;

	foreach my $line (split(/\n/, page_text($page)))
	{
		$number++;
		if ($block)
		{
			if ($line =~ /^\s*```\s*$/)
			{
				push @blocks, $block;
				$block = undef;
			}
			else { $block->{text} .= "$line\n" }
		}
		elsif (defined $comment)
		{
			if ($line =~ /^(.*?)-->/)
			{
				push @directives, [ split(' ', $comment . $1, 2) ];
				$comment = undef;
			}
			else { $comment .= "$line\n" }
		}
		elsif ($line =~ /^\s*```(\w*)/)
		{
			$block = { line => $number, language => $1, text => '', directives => [@directives] };
			@directives = ();
		}
		elsif ($line =~ /^<!-- example: (.*?)\s*-->/) { push @directives, [ split(' ', $1, 2) ] }
		elsif ($line =~ /^<!-- example: (.*)$/) { $comment = "$1\n" }
	}
	die "$page: a block or a comment has no end\n" if $block || defined $comment;
	return @blocks;
}

# The page without its blocks of code.
sub _prose
{
	my ($page) = @_;

	return page_text($page) =~ s/^\s*```.*?^\s*```\s*$//gmsr;
}

# As GitHub makes the anchor of a heading.
sub anchor
{
	my ($heading) = @_;

	$heading =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
	$heading = lc($heading);
	$heading =~ s/[^\w\- ]//g;
	$heading =~ s/ /-/g;
	return $heading;
}

# Headings: [ level, text ]
sub headings
{
	my ($page) = @_;

	return map { /^(#+) +(.*?)\s*$/ ? [ length($1), $2 ] : () } split(/\n/, _prose($page));
}

# Targets of links and images, as they are written.
sub links
{
	my ($page) = @_;
	my $prose = _prose($page) =~ s/`[^`\n]*`//gr;

	return $prose =~ /\]\(([^)\s]+)\)/g;
}

1;
